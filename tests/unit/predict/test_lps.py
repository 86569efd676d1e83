"""The average case: the formula by hand, what its file must be, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.errors import DataError
from chimera_train.files import write_json, write_text
from chimera_train.predict.lps import ProcessorSharing, mean_wait_ms

MODEL = ProcessorSharing(
    mu_per_s=10.0, k=2, prefill_ms=20.0, prefill_ms_per_token=0.5, observed_per_s=(1.0, 9.0)
)


def test_waits_by_hand() -> None:
    # (5/10)² / (10 - 5) = 0.05 s; (9/10)² / (10 - 9) = 0.81 s
    assert MODEL.wait_ms(5.0) == pytest.approx(50.0)
    np.testing.assert_allclose(MODEL.wait_ms(np.array([0.0, 5.0, 9.0])), [0.0, 50.0, 810.0])
    assert MODEL.ttft_ms(5.0, 100) == pytest.approx(50.0 + 20.0 + 50.0)
    np.testing.assert_allclose(MODEL.ttft_ms(5.0, np.array([0, 100])), [70.0, 120.0])


def test_saturation_is_reported_as_such() -> None:
    assert not MODEL.is_saturated(9.99)
    for rate in (10.0, 11.0, math.inf):
        assert MODEL.is_saturated(rate)
        assert MODEL.wait_ms(rate) == math.inf
        assert MODEL.ttft_ms(rate, 1) == math.inf
    np.testing.assert_array_equal(MODEL.wait_ms(np.array([0.0, 10.0, 99.0])), [0, np.inf, np.inf])


@given(
    mu=st.floats(0.01, 1e4),
    k=st.integers(1, 500),
    share=st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
)
def test_waits_grow_with_the_rate_and_shrink_with_k(mu: float, k: int, share: list[float]) -> None:
    low, high = sorted(share)
    assert mean_wait_ms(low * mu, mu, k) <= mean_wait_ms(high * mu, mu, k)
    assert mean_wait_ms(high * mu, mu, k + 1) <= mean_wait_ms(high * mu, mu, k)


@pytest.mark.parametrize("rate", [-1.0, math.nan])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="negative or not a number"):
        MODEL.wait_ms(rate)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mu_per_s": 0.0}, "mu_per_s is 0.0"),
        ({"mu_per_s": math.inf}, "mu_per_s is inf"),
        ({"mu_per_s": 9.0}, "observed_per_s is 1.0 to 9.0, it must lie between 0 and mu_per_s"),
        ({"k": 0}, "k is 0"),
        ({"prefill_ms": -1.0}, "prefill_ms is -1.0"),
        ({"prefill_ms_per_token": math.nan}, "prefill_ms_per_token is nan"),
        ({"observed_per_s": (3.0, 2.0)}, "observed_per_s is 3.0 to 2.0"),
    ],
)
def test_values_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(MODEL, **change)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    write_json(path, {**MODEL.document(), "fitted_on": {"requests": 7}})
    assert ProcessorSharing.load(path) == MODEL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "eq9"}, "is not a file of 'chimera-train calibrate-endpoint'"),
        ({"schema": 2}, "has schema 2, newer than the supported 1: update chimera-train"),
        ({"schema": "one"}, "schema: "),
        ({"mu_per_s": "fast"}, "mu_per_s: input should be a valid number"),
        ({"mu_per_s": None}, "mu_per_s: "),
        ({"k": 2.5}, "k: "),
        ({"k": 0}, "k is 0, it must be at least 1"),
        ({"observed_per_s": [1.0]}, "observed_per_s"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "endpoint.json"
    write_json(path, {**MODEL.document(), **change})
    with pytest.raises(DataError, match=message) as refused:
        ProcessorSharing.load(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        ProcessorSharing.load(tmp_path / "none.json")
    path = tmp_path / "endpoint.json"
    for text, message in (("{", "not valid JSON"), ("[]", "is not a file of")):
        write_text(path, text)
        with pytest.raises(DataError, match=message):
            ProcessorSharing.load(path)
    document = dict(MODEL.document())
    del document["mu_per_s"]
    write_json(path, document)
    with pytest.raises(DataError, match="mu_per_s: field required"):
        ProcessorSharing.load(path)

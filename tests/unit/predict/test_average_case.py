"""W against closed-form queues, and files that are refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.predict.average_case import AverageCase, load_average_case, mean_wait_ms

MODEL = AverageCase(
    schema_version=1,
    kind="lps",
    mu_per_s=10.0,
    k=4,
    floor_ms=20.0,
    floor_ms_s=0.5,
    mape={"used": 1.0, "constant": 2.0, "mm1": 3.0},
    loads=[],
    fitted_on={},
)


def test_one_at_a_time_is_mm1() -> None:
    rates = np.array([0.0, 2.0, 5.0, 9.0])
    rho = rates / 10
    assert mean_wait_ms(rates, 10.0, 1) == pytest.approx(1000 * rho / (10 * (1 - rho)))


def test_all_at_once_never_wait_until_they_are_too_many() -> None:
    assert mean_wait_ms(np.array([9.0]), 10.0, 100_000) == pytest.approx([0.0])
    assert mean_wait_ms(np.array([10.0, 11.0]), 10.0, 100_000).tolist() == [math.inf, math.inf]


def test_ttft_is_a_floor_that_rises_and_the_wait() -> None:
    assert MODEL.ttft_ms(0.0) == 20.0
    assert MODEL.ttft_ms(8.0) == pytest.approx(20 + 4 + 1000 * 0.8**4 / 2)
    assert [MODEL.is_saturated(rate) for rate in (9.99, 10.0)] == [False, True]
    assert MODEL.ttft_ms(10.0) == math.inf


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text(json.dumps(MODEL.model_dump()))
    assert load_average_case(path) == MODEL


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "newer than the supported 1"),
        ({"kind": "eq9"}, "kind"),
        ({"mu_per_s": 0}, "mu_per_s"),
        ({"k": None}, "k: "),
    ],
)
def test_damaged_and_foreign_files(tmp_path: Path, change: dict[str, object], words: str) -> None:
    path = tmp_path / "endpoint.json"
    path.write_text(json.dumps({**MODEL.model_dump(), **change}))
    with pytest.raises(DataError, match=words):
        load_average_case(path)

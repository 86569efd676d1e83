"""Rows that stand for several steps: linear models predict their sums, others refuse them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.fit import fit, predict
from chimera_train.latency.steps import check_steps, read_steps
from chimera_train.latency.sums import (
    COUNTS_OF_STEPS,
    complete,
    is_summed,
    sums_exactly,
    tells_apart,
)
from chimera_train.predict.step_terms import KINDS

Make = Callable[..., pd.DataFrame]
SUMMED = ["prefill_tokens", "decode_tokens", "decode_ctx_tokens", "prefill_attn", "step_ms"]


def summed(frame: pd.DataFrame, size: int) -> pd.DataFrame:
    """``frame`` with every ``size`` steps timed as one row."""
    prefill, decode = frame["prefill_tokens"], frame["decode_tokens"]
    counted = frame.assign(
        n_steps=1,
        n_prefill_steps=(prefill > 0).astype(int),
        n_decode_steps=(decode > 0).astype(int),
        n_batched_steps=(prefill + decode > 1).astype(int),
    )
    columns = [*SUMMED, *COUNTS_OF_STEPS]
    return counted.groupby(np.arange(len(frame)) // size)[columns].sum()


def test_linear_kinds_fit_sums_as_they_fit_steps(
    steps_frame: Make, true_terms: dict[str, float], tmp_path: Path
) -> None:
    frame = steps_frame(600)
    rows = check_steps(summed(frame, 5), tmp_path).frame
    fitted = fit("eq9", rows)
    assert fitted.terms == pytest.approx(true_terms, rel=1e-6)
    np.testing.assert_allclose(predict(fitted, rows), rows["step_ms"])
    # What it says of single steps is what the file of it would.
    np.testing.assert_allclose(predict(fitted, frame), frame["step_ms"])


def test_only_linear_kinds_sum_exactly() -> None:
    assert [kind for kind in KINDS if sums_exactly(kind)] == ["tokens", "memory", "eq9"]


def test_counts_of_steps_are_filled_in_where_they_follow() -> None:
    frame = pd.DataFrame(
        {
            "prefill_tokens": [64.0, 0, 0, 64, 640],
            "decode_tokens": [0.0, 9, 36, 2, 0],
            "n_steps": [1, 9, 9, np.nan, 10],
        }
    )
    expected = [[1, 1, 0, 1], [9, 0, 9, 0], [9, 0, 9, 9], [1, 1, 1, 1], [10, 10, 0, 10]]
    assert complete(frame)[list(COUNTS_OF_STEPS)].to_numpy().tolist() == expected
    assert not is_summed(complete(frame.assign(n_steps=1)))
    assert not is_summed(complete(frame.drop(columns="n_steps")))


def test_a_row_of_both_kinds_must_say_how_many_steps_of_each(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("prefill_tokens,decode_tokens,n_steps,step_ms\n64,63,64,500\n")
    with pytest.raises(DataError, match="in 1 n_prefill_steps is empty"):
        read_steps(path)
    header = "prefill_tokens,decode_tokens,n_steps,n_prefill_steps,n_decode_steps,n_batched_steps"
    path.write_text(f"{header},step_ms\n64,63,64,1,65,64,500\n64,63,0,1,63,64,500\n")
    with pytest.raises(DataError, match="in 2 n_steps is below 1, or below a count of steps"):
        read_steps(path)


def test_kinds_that_need_single_steps_are_refused_or_left_out(
    steps_frame: Make, tmp_path: Path
) -> None:
    path = tmp_path / "s.csv"
    summed(steps_frame(600, noise=0.02), 5).to_csv(path, index=False)
    steps = read_steps(path)
    with pytest.raises(DataError, match="'table' needs single ones: use auto, tokens, memory, eq9"):
        calibrate(steps, kind="table", engine=None)
    document = calibrate(steps, kind=None, engine=None).document
    assert document["kind"] == "eq9"
    assert set(document["baselines"]) == {"tokens", "memory"}
    assert (document["fitted_on"]["steps"], document["fitted_on"]["rows"]) == (600, 120)
    assert document["mape"]["overall"] < 3


def test_costs_that_nothing_tells_apart_are_not_fitted_apart(
    steps_frame: Make, tmp_path: Path
) -> None:
    """Every output is as long as its prompt, so prefill and decode tokens grow together."""
    frame = steps_frame(600)
    rows = summed(frame, 5)
    assert tells_apart(rows)
    rows["decode_tokens"] = rows["prefill_tokens"] * 0.99
    rows["n_decode_steps"] = rows["n_prefill_steps"] = rows["n_steps"]
    rows["decode_ctx_tokens"] = rows["decode_tokens"] * rows.index.map(lambda i: 64 << i % 5)
    rows = rows[(rows["prefill_tokens"] > 0) & (rows["prefill_attn"] > 0)]
    assert not tells_apart(rows)
    rows.to_csv(tmp_path / "s.csv", index=False)
    document = calibrate(read_steps(tmp_path / "s.csv"), kind=None, engine=None).document
    assert {document["kind"], *document["baselines"]} == {"tokens", "memory"}

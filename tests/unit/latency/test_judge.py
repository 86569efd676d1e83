"""A model is judged on contexts and batch shapes it has not seen, and beside what is possible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera_train.latency.fit import regimes
from chimera_train.latency.judge import (
    N_FOLDS,
    context_folds,
    cross_validate,
    errors,
    repeatability,
    shape_folds,
)
from chimera_train.latency.steps import read_steps

Make = Callable[..., pd.DataFrame]


def test_held_out_steps_are_predicted_without_their_batch_shape(steps_frame: Make) -> None:
    """Spoiling every step of one shape cannot change what is predicted for that shape."""
    frame = steps_frame(400, noise=0.05)
    shape = (frame["prefill_tokens"] == 0) & (frame["decode_tokens"] == 7)
    assert shape.sum() >= 2
    spoiled = frame.assign(step_ms=frame["step_ms"].where(~shape, frame["step_ms"] * 1.5))
    folds = shape_folds(frame)
    before, after = (cross_validate("eq9", steps, folds) for steps in (frame, spoiled))
    np.testing.assert_array_equal(before[shape], after[shape])
    assert not np.array_equal(before[~shape], after[~shape])


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 200), st.just(2)), elements=st.integers(0, 6)))
def test_a_shape_is_in_one_fold_and_folds_are_even(tokens: np.ndarray) -> None:
    frame = pd.DataFrame(tokens, columns=["prefill_tokens", "decode_tokens"])
    frame["fold"] = shape_folds(frame)
    frame["regime"] = regimes(frame)
    assert frame["fold"].between(0, N_FOLDS - 1).all()
    shapes = frame.drop_duplicates()
    assert not shapes.duplicated(["prefill_tokens", "decode_tokens"]).any()
    for _, members in shapes.groupby("regime"):
        counts = np.bincount(members["fold"], minlength=N_FOLDS)
        assert counts.max() - counts.min() <= 1


def test_like_contexts_are_in_one_fold() -> None:
    # Chunks of 10 tokens, which attend to half of themselves, after so many computed ones.
    computed = np.array([0, 100, 104, 900, 9000, 40])
    prefill = pd.DataFrame(
        {
            "prefill_tokens": 10,
            "decode_tokens": 0,
            "prefill_attn": 10 * computed + 55,
            "decode_ctx_tokens": 0,
        }
    )
    decode = pd.DataFrame(
        {
            "prefill_tokens": 0,
            "decode_tokens": [1, 2, 4, 1, 1, 1, 1],
            "prefill_attn": 0,
            "decode_ctx_tokens": [100, 202, 400, 3000, 20, 400, 9000],
        }
    )
    folds = context_folds(pd.concat([prefill, decode], ignore_index=True)).tolist()
    assert folds == [0, 2, 2, 3, 4, 1, 1, 1, 1, 3, 0, 2, 4]


def test_shapes_stand_in_where_contexts_are_few_or_unknown() -> None:
    frame = pd.DataFrame({"prefill_tokens": [0, 8, 9, 8, 8], "decode_tokens": [1, 0, 0, 1, 0]})
    assert context_folds(frame).tolist() == [0, 0, 1, 0, 0]
    # Every prompt from its beginning: one context, so its length is what is held out.
    known = frame.assign(
        prefill_attn=frame["prefill_tokens"] * (frame["prefill_tokens"] + 1) / 2,
        decode_ctx_tokens=100 * frame["decode_tokens"],
    )
    assert context_folds(known).tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("kind", "overall", "decode_only"), [("eq9-plus", 5.2, 1.5), ("table", 1.5, 1.5)]
)
def test_public_steps(public_steps: Path, kind: str, overall: float, decode_only: float) -> None:
    frame = read_steps(public_steps, max_context=4096).frame
    for folds in (context_folds(frame), shape_folds(frame)):
        mape = errors(cross_validate(kind, frame, folds), frame)["mape"]
        assert mape["overall"] <= overall
        assert mape["decode_only"] <= decode_only


def test_errors_by_hand() -> None:
    frame = pd.DataFrame(
        {
            "prefill_tokens": [0, 0, 8, 8],
            "decode_tokens": [1, 2, 1, 1],
            "step_ms": [10.0, 10.0, 20.0, 40.0],
        }
    )
    result = errors(np.array([11.0, 7.0, 20.0, 20.0]), frame)
    # +10, -30, 0 and -50 %
    assert result["mape"] == pytest.approx(
        {"overall": 22.5, "decode_only": 20.0, "prefill_only": None, "mixed": 25.0}
    )
    assert result["bias"] == pytest.approx(-17.5)
    assert result["p90"] == pytest.approx(30 + 0.7 * 20)


def test_repeatability_by_hand() -> None:
    frame = pd.DataFrame(
        {
            "prefill_tokens": [0, 0, 0, 0, 8, 8, 0],
            "decode_tokens": [2, 2, 2, 2, 0, 0, 3],
            "decode_ctx_tokens": [104, 105, 106, 200, 0, 0, 104],
            "step_ms": [10.0, 20.0, 40.0, 99.0, 10.0, 8.0, 99.0],
        }
    )
    result = repeatability(frame)
    # 30, 25 and 15 for 10, 20 and 40; 8 and 10 for 10 and 8. Twice the context is another batch.
    assert result is not None
    assert result["share"] == pytest.approx(5 / 7)
    assert result["mape"]["decode_only"] == pytest.approx((200 + 25 + 62.5) / 3)
    assert result["mape"]["prefill_only"] == pytest.approx((20 + 25) / 2)
    assert repeatability(frame[3:5]) is None


@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_repeatability_takes_the_median_of_the_others(n: int) -> None:
    times = np.random.default_rng(n).integers(1, 5, n).astype(float)
    frame = pd.DataFrame({"prefill_tokens": 1, "decode_tokens": 0, "step_ms": times})
    medians = np.array([np.median(np.delete(times, i)) for i in range(n)])
    result = repeatability(frame)
    assert result is not None
    assert result["mape"]["overall"] == pytest.approx(100 * np.mean(abs(medians / times - 1)))

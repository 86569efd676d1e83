"""The fit finds known coefficients in noise and stalls, and is judged on unseen batch shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import nnls

from chimera_train.errors import DataError
from chimera_train.latency.fit import (
    N_FOLDS,
    REGIMES,
    check_enough,
    cross_validate,
    errors,
    fit,
    regimes,
    repeatability,
    shape_folds,
)
from chimera_train.latency.steps import Steps, read_steps

Make = Callable[..., pd.DataFrame]


def test_exact_steps_give_exact_coefficients(
    steps_frame: Make, true_terms: dict[str, float]
) -> None:
    fitted = fit("eq9", steps_frame(200))
    assert fitted.terms == pytest.approx(true_terms, rel=1e-9)
    assert (fitted.stall_probability, fitted.stall_ms) == (0.0, 0.0)


def test_noise_does_not_bias_the_predictions(steps_frame: Make) -> None:
    """The mean is what a simulator adds up; dividing by measured times would lose 8 % of it."""
    noise = 0.2
    exact = steps_frame(20_000)
    noisy = exact.assign(
        step_ms=exact["step_ms"] * np.random.default_rng(1).lognormal(0, noise, 20_000)
    )
    ratio = cross_validate("eq9", noisy) / exact["step_ms"].to_numpy()
    # E[lognormal(0, s)] = exp(s²/2)
    np.testing.assert_allclose(ratio, np.exp(noise**2 / 2), rtol=0.03)
    assert ratio.mean() == pytest.approx(np.exp(noise**2 / 2), rel=0.005)


def test_stalls_are_left_out_and_reported(steps_frame: Make, true_terms: dict[str, float]) -> None:
    frame = steps_frame(2000)
    stalled = np.arange(0, 2000, 50)
    frame.loc[stalled, "step_ms"] += 400.0
    fitted = fit("eq9", frame)
    assert fitted.terms == pytest.approx(true_terms, rel=1e-9)
    assert fitted.stall_probability == len(stalled) / 2000
    assert fitted.stall_ms == pytest.approx(400)


def test_coefficients_are_never_negative(steps_frame: Make) -> None:
    frame = steps_frame(400)
    frame["step_ms"] -= 4e-4 * frame["decode_ctx_tokens"]
    frame = frame[frame["step_ms"] > 1]
    fitted = fit("eq9", frame)
    assert fitted.terms["decode_ctx_tokens"] == 0
    assert min(fitted.terms.values()) >= 0


def test_few_decode_steps_weigh_as_much_as_many_mixed_ones(steps_frame: Make) -> None:
    """Mixed batches of this engine are slower than Eq. 9 can say; decode-only ones stay right."""
    frame = steps_frame(3000, mixed=0.96, noise=0.02)
    mixed = regimes(frame) == REGIMES.index("mixed")
    frame.loc[mixed, "step_ms"] *= 1.3
    balanced = errors(cross_validate("eq9", frame), frame)["mape"]
    plain = errors(_plain_relative_fit(frame), frame)["mape"]
    assert balanced["decode_only"] < plain["decode_only"] - 5


def test_balance_on_public_steps(public_steps: Path) -> None:
    frame = read_steps(public_steps, max_context=4096).frame
    balanced = errors(cross_validate("eq9", frame), frame)["mape"]
    plain = errors(_plain_relative_fit(frame), frame)["mape"]
    assert len(frame) == 4044
    # Even on its own training data the unbalanced fit is worse on what engines mostly do.
    assert balanced["decode_only"] < 5 < 7 < plain["decode_only"]
    tokens = errors(cross_validate("tokens", frame), frame)["mape"]
    assert balanced["overall"] < 9 < 10 < tokens["overall"]
    assert all(balanced[name] < tokens[name] for name in balanced)


def test_published_coefficients_of_a_small_model_need_two_token_costs(public_steps: Path) -> None:
    """SFS's Qwen3-0.6B: a decode token costs eight prefill tokens, so one β1 cannot serve both."""
    frame = read_steps(public_steps, max_context=4096).frame
    frame["step_ms"] = (
        2.582
        + 2.034e-3 * frame["prefill_tokens"]
        + 1.689e-2 * frame["decode_tokens"]
        + 3.543e-5 * frame["decode_ctx_tokens"]
        + 1.893e-7 * frame["prefill_tokens"] ** 2
    )
    split = errors(cross_validate("eq9", frame), frame)["mape"]["overall"]
    one = errors(_plain_relative_fit(frame), frame)["mape"]["overall"]
    assert split < 2 < 5 < one


def _plain_relative_fit(frame: pd.DataFrame) -> np.ndarray:
    """Eq. 9 with its single β1, relative least squares, no balance; in-sample predictions."""
    X = np.column_stack(
        [
            np.ones(len(frame)),
            frame["prefill_tokens"] + frame["decode_tokens"],
            frame["decode_ctx_tokens"],
            frame["prefill_attn"],
        ]
    )
    weighted = X / frame["step_ms"].to_numpy()[:, None]
    scale = weighted.max(axis=0)
    return X @ (nnls(weighted / scale, np.ones(len(frame)))[0] / scale)


def test_held_out_steps_are_predicted_without_their_batch_shape(steps_frame: Make) -> None:
    """Spoiling every step of one shape cannot change what is predicted for that shape."""
    frame = steps_frame(400, noise=0.05)
    shape = (frame["prefill_tokens"] == 0) & (frame["decode_tokens"] == 7)
    assert shape.sum() >= 2
    spoiled = frame.assign(step_ms=frame["step_ms"].where(~shape, frame["step_ms"] * 1.5))
    before, after = cross_validate("eq9", frame), cross_validate("eq9", spoiled)
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


def test_too_few_steps_or_shapes(steps_frame: Make, tmp_path: Path) -> None:
    frame = steps_frame(200)
    decode_only = frame["prefill_tokens"] == 0
    check_enough(Steps(frame, tmp_path))
    with pytest.raises(DataError, match="leaves 29 steps to fit on, at least 30"):
        check_enough(Steps(frame[:29], tmp_path))
    with pytest.raises(DataError, match=r"0 batch shapes .* steps without prefill"):
        check_enough(Steps(frame[~decode_only], tmp_path))
    with pytest.raises(DataError, match=r"0 batch shapes .* steps with prefill"):
        check_enough(Steps(frame[decode_only], tmp_path))
    one = decode_only & (frame["decode_tokens"] != 7)
    with pytest.raises(DataError, match=r"1 batch shapes .* steps without prefill"):
        check_enough(Steps(frame[~one], tmp_path))

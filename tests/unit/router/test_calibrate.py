import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera_train.router.calibrate import fit_calibration


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_recovers_the_distortion_of_an_overconfident_network() -> None:
    true = np.linspace(-3, 3, 400)[:, None]
    scale, bias = fit_calibration(_sigmoid(true), 4 * true + 2)
    # true = (logit - 2) / 4
    assert scale == pytest.approx([0.25], rel=0.05)
    assert bias == pytest.approx([-0.5], rel=0.05)


def test_leaves_calibrated_logits_alone_up_to_noise() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 1))
    outcomes = (rng.random((2000, 1)) < _sigmoid(logits)).astype(float)
    scale, bias = fit_calibration(outcomes, logits)
    assert scale == pytest.approx([1], abs=0.15)
    assert bias == pytest.approx([0], abs=0.15)


def test_identity_where_questions_are_few() -> None:
    few = np.array([[0.0], [1.0], [1.0]])
    scale, bias = fit_calibration(few, np.array([[5.0], [-5.0], [3.0]]))
    assert (scale[0], bias[0]) == (1, 0)


def test_models_are_calibrated_apart_and_ungraded_rows_ignored() -> None:
    true = np.linspace(-3, 3, 200)
    success = np.column_stack([_sigmoid(true), _sigmoid(true)])
    logits = np.column_stack([true * 4, true])
    success = np.vstack([success, np.full((50, 2), np.nan)])
    logits = np.vstack([logits, np.full((50, 2), 100.0)])
    scale, _ = fit_calibration(success, logits)
    assert scale == pytest.approx([0.25, 1], rel=0.05)


@given(
    hnp.arrays(float, (20, 1), elements=st.sampled_from([0.0, 0.5, 1.0])),
    hnp.arrays(float, (20, 1), elements=st.floats(-8, 8)),
)
def test_never_reverses_the_ranking(success: np.ndarray, logits: np.ndarray) -> None:
    scale, bias = fit_calibration(success, logits)
    assert np.isfinite([*scale, *bias]).all()
    assert scale[0] > 0

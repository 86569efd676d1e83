import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera_train.predict.calibration import Calibration, Label, sigmoid
from chimera_train.router.calibrate import LEAST_FOR_ISOTONIC, fit_calibration
from chimera_train.router.metrics import calibration_error, macro_map


def _fit(success: np.ndarray, logits: np.ndarray, weights: np.ndarray | None = None) -> Calibration:
    models = [f"m{m}" for m in range(success.shape[1])]
    return fit_calibration(models, success, logits, weights)


def _label(success: np.ndarray, logits: np.ndarray, weights: np.ndarray | None = None) -> Label:
    return _fit(success, logits, weights).labels[0]


def test_recovers_the_distortion_of_an_overconfident_network() -> None:
    true = np.linspace(-3, 3, 400)[:, None]
    label = _label(sigmoid(true), 4 * true + 2)
    # true = (logit - 2) / 4
    assert label.scale == pytest.approx(0.25, rel=0.05)
    assert label.bias == pytest.approx(-0.5, rel=0.05)


def test_leaves_calibrated_logits_alone_up_to_noise() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2000, 1))
    outcomes = (rng.random((2000, 1)) < sigmoid(logits)).astype(float)
    label = _label(outcomes, logits)
    assert label.scale == pytest.approx(1, abs=0.15)
    assert label.bias == pytest.approx(0, abs=0.15)
    assert label.knots is None


def test_identity_where_questions_are_few() -> None:
    few = np.array([[0.0], [1.0], [1.0]])
    assert _label(few, np.array([[5.0], [-5.0], [3.0]])) == Label(model="m0")


def test_models_are_calibrated_apart_and_ungraded_rows_ignored() -> None:
    true = np.linspace(-3, 3, 200)
    success = np.column_stack([sigmoid(true), sigmoid(true)])
    logits = np.column_stack([true * 4, true])
    success = np.vstack([success, np.full((50, 2), np.nan)])
    logits = np.vstack([logits, np.full((50, 2), 100.0)])
    calibration = _fit(success, logits)
    assert calibration.models == ("m0", "m1")
    np.testing.assert_allclose(calibration.apply(logits)[:200], success[:200], atol=0.02)


def test_differences_that_are_noise_are_shrunk_and_levels_stay() -> None:
    rng = np.random.default_rng(3)
    ease = rng.normal(size=(600, 1))
    levels = np.array([-1.0, 0.0, 1.0])
    success = (rng.random((600, 3)) < sigmoid(ease + levels)).astype(float)
    logits = ease + levels + rng.normal(size=(600, 3))
    calibration = _fit(success[:300], logits[:300])
    for label in calibration.labels:
        assert 0 < label.scale < 0.5 * (label.scale + label.common) < 0.5
    after = calibration.apply(logits)
    mean = np.log(after / (1 - after))[:300].mean(axis=0)
    np.testing.assert_allclose(mean, logits[:300].mean(axis=0), atol=1e-6)
    unseen = slice(300, None)
    assert macro_map(success[unseen], after[unseen]) > macro_map(success[unseen], logits[unseen])


def test_differences_that_are_true_are_kept() -> None:
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(1000, 3))
    success = (rng.random((1000, 3)) < sigmoid(logits)).astype(float)
    for label in _fit(success, logits).labels:
        assert label.scale == pytest.approx(1, abs=0.1)
        assert label.common == pytest.approx(0, abs=0.15)


def test_rates_of_many_samples_count_for_as_many() -> None:
    rng = np.random.default_rng(1)
    true = rng.normal(size=(200, 1))
    success = (rng.random((200, 1)) < sigmoid(true)).astype(float)
    counts = rng.integers(1, 4, 200)
    weighted = _label(success, 4 * true, counts[:, None].astype(float))
    repeated = _label(np.repeat(success, counts, axis=0), np.repeat(4 * true, counts, axis=0))
    assert weighted.scale == pytest.approx(repeated.scale)
    assert weighted.scale < 0.5


def _stairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes whose rate rises in a stair, which no logistic function is."""
    rng = np.random.default_rng(2)
    logits = rng.normal(scale=2, size=(n, 1))
    rate = np.select([logits < -1, logits < 1], [0.1, 0.5], 0.7)
    return (rng.random((n, 1)) < rate).astype(float), logits


def test_isotonic_regression_fits_what_no_logistic_function_is() -> None:
    success, logits = _stairs(4000)
    calibration = _fit(success, logits)
    assert calibration.labels[0].knots is not None
    unseen, at = _stairs(8000)
    platt = Calibration([calibration.labels[0].model_copy(update={"knots": None})])
    after = calibration_error(unseen[4000:], calibration.apply(at)[4000:])
    assert after < 0.5 * calibration_error(unseen[4000:], platt.apply(at)[4000:])
    # Nothing that was told apart is a tie now.
    assert (np.diff(calibration.apply(np.sort(at, axis=0)), axis=0) > 0).all()


def test_isotonic_regression_needs_many_questions() -> None:
    success, logits = _stairs(LEAST_FOR_ISOTONIC - 1)
    assert _label(success, logits).knots is None


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(float, (20, 1), elements=st.sampled_from([0.0, 0.5, 1.0])),
    hnp.arrays(float, (20, 1), elements=st.floats(-8, 8)),
)
def test_never_reverses_the_ranking(success: np.ndarray, logits: np.ndarray) -> None:
    label = _label(success, logits)
    assert np.isfinite([label.scale, label.bias]).all()
    assert label.scale > 0

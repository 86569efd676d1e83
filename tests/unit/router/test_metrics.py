import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.router.metrics import (
    average_precision,
    calibration_error,
    macro_interval,
    macro_map,
)

NAN = np.nan


def test_average_precision_by_its_definition() -> None:
    # Ranked by score the labels are 1, 0, 1, 0: precision 1 at the first hit, 2/3 at the second.
    success = np.array([[0.0], [1.0], [0.5], [0.4]])
    scores = np.array([[0.8], [0.9], [0.7], [0.1]])
    assert average_precision(success, scores) == pytest.approx([(1 + 2 / 3) / 2])


def test_weights_count_rows_as_often() -> None:
    rng = np.random.default_rng(0)
    success, scores = rng.random((20, 2)), rng.random((20, 2))
    counts = rng.integers(0, 4, 20)
    assert average_precision(success, scores, counts.astype(float)) == pytest.approx(
        average_precision(np.repeat(success, counts, axis=0), np.repeat(scores, counts, axis=0))
    )


def test_ungraded_pairs_and_single_class_models_count_nowhere() -> None:
    success = np.array([[1.0, 1.0, NAN], [0.0, 1.0, NAN], [NAN, 1.0, NAN]])
    scores = np.array([[0.2, 0.5, 0.5], [0.1, 0.5, 0.5], [0.9, 0.5, 0.5]])
    precisions = average_precision(success, scores)
    assert precisions[0] == 1
    assert np.isnan(precisions[1:]).all()
    assert macro_map(success, scores) == 1
    with pytest.raises(DataError, match="undefined"):
        macro_map(success[:, 1:], scores[:, 1:])


def test_interval_holds_the_estimate_and_resamples_questions_not_rows() -> None:
    rng = np.random.default_rng(1)
    success = rng.random((60, 2)).round()
    scores = success * 0.3 + rng.random((60, 2))
    ids = np.array([f"q{i}" for i in range(60)], dtype=object)

    def interval(repeats: int) -> tuple[float, float]:
        return macro_interval(
            np.repeat(success, repeats, axis=0),
            np.repeat(scores, repeats, axis=0),
            np.repeat(ids, repeats),
            resamples=100,
            seed=0,
        )

    low, high = interval(1)
    assert low < macro_map(success, scores) < high
    # Saying everything three times adds no evidence.
    assert interval(3) == pytest.approx((low, high))


def test_interval_survives_resamples_without_a_class() -> None:
    success = np.array([[1.0], [0.0], [0.0]])
    ids = np.array(["a", "b", "c"], dtype=object)
    low, high = macro_interval(success, success, ids, resamples=100, seed=0)
    assert low == high == 1


def test_calibration_error_by_hand() -> None:
    probabilities = np.array([[0.91, 0.5], [0.95, 0.5], [0.13, 0.5], [1.0, 0.5]])
    success = np.array([[1.0, 0.5], [0.5, NAN], [0.0, NAN], [1.0, 0.5]])
    # First model: bin 0.9..1 has mean gap (2.86 - 2.5) / 3 for 3 rows, bin 0.1..0.2 has 0.13 for 1.
    assert calibration_error(success, probabilities) == pytest.approx((0.36 + 0.13) / 4 / 2)

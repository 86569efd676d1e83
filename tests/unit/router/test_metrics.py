import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from chimera_train.errors import DataError
from chimera_train.router.metrics import (
    average_precision,
    calibration_error,
    interval,
    macro_map,
    reliability,
    resampled_map,
    resampled_precision,
    resamples,
)

NAN = np.nan


def test_average_precision_by_its_definition() -> None:
    # Ranked by score the labels are 1, 0, 1, 0: precision 1 at the first hit, 2/3 at the second.
    success = np.array([[0.0], [1.0], [0.5], [0.4]])
    scores = np.array([[0.8], [0.9], [0.7], [0.1]])
    assert average_precision(success, scores) == pytest.approx([(1 + 2 / 3) / 2])


def test_precision_is_scikit_learns_also_with_ties_and_counts() -> None:
    rng = np.random.default_rng(0)
    success = rng.random((40, 2))
    success[rng.random((40, 2)) < 0.2] = NAN
    scores = rng.random((40, 2)).round(1)
    counts = rng.integers(0, 4, (5, 40)).astype(float)
    found = resampled_precision(success, scores, counts)
    for resample, of_rows in enumerate(counts):
        for m in range(2):
            rows = ~np.isnan(success[:, m])
            expected = average_precision_score(
                success[rows, m] >= 0.5, scores[rows, m], sample_weight=of_rows[rows]
            )
            assert found[resample, m] == pytest.approx(expected)


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

    def of(repeats: int) -> list[float] | None:
        counts = resamples(np.repeat(ids, repeats), 100, seed=0)
        assert counts.shape == (100, 60 * repeats)
        copies = [np.repeat(array, repeats, axis=0) for array in (success, scores)]
        return interval(resampled_map(resampled_precision(*copies, counts)))

    low, high = of(1)
    assert low < macro_map(success, scores) < high
    # Saying everything three times adds no evidence.
    assert of(3) == pytest.approx((low, high))


def test_resamples_without_a_class_average_over_the_other_models() -> None:
    precisions = np.array([[0.5, 0.7], [NAN, 0.7], [NAN, NAN]])
    np.testing.assert_allclose(resampled_map(precisions), [0.6, 0.7, NAN])
    assert interval(np.array([1.0, 1.0, NAN])) == [1.0, 1.0]
    assert interval(np.array([1.0, NAN, NAN])) is None
    assert interval(np.array([])) is None


def test_calibration_error_by_hand() -> None:
    probabilities = np.array([[0.91, 0.5], [0.95, 0.5], [0.13, 0.5], [1.0, 0.5]])
    success = np.array([[1.0, 0.5], [0.5, NAN], [0.0, NAN], [1.0, 0.5]])
    # First model: bin 0.9..1 has mean gap (2.86 - 2.5) / 3 for 3 rows, bin 0.1..0.2 has 0.13 for 1.
    assert calibration_error(success, probabilities) == pytest.approx((0.36 + 0.13) / 4 / 2)


def test_reliability_is_the_means_of_each_bin_that_has_questions() -> None:
    of_model = reliability(np.array([1.0, 0.0, 0.5, NAN]), np.array([0.1, 0.15, 1.0, 0.5]))
    np.testing.assert_allclose(of_model.confidence, [0.125, 1.0])
    np.testing.assert_allclose(of_model.success, [0.5, 0.5])
    assert of_model.questions.tolist() == [2, 1]
    assert of_model.error == pytest.approx((2 * 0.375 + 0.5) / 3)

"""How good confidences are: average precision, calibration error, and intervals.

Success rates come as (n, n_models) with NaN for pairs that were never graded; such pairs count
nowhere.
"""

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score

from chimera_train.errors import DataError
from chimera_train.router.labels import SOLVED

__all__ = ["average_precision", "calibration_error", "macro_interval", "macro_map"]

Array = npt.NDArray[np.float64]

_ECE_BINS = 10


def average_precision(success: Array, scores: Array, weights: Array | None = None) -> Array:
    """Average precision of each model's scores, in 0..1, shape (n_models,).

    A question counts as positive where its success rate is at least one half. NaN for a model
    with positives or negatives only, for which ranking means nothing.

    Args:
        success: success rates, shape (n, n_models).
        scores: any increasing function of the confidence, shape (n, n_models).
        weights: how often each row counts, shape (n,); None counts each once.
    """
    counts = np.ones(len(success)) if weights is None else weights
    result = np.full(success.shape[1], np.nan)
    for m in range(success.shape[1]):
        rows = ~np.isnan(success[:, m]) & (counts > 0)
        solved = success[rows, m] >= SOLVED
        if solved.any() and not solved.all():
            result[m] = average_precision_score(solved, scores[rows, m], sample_weight=counts[rows])
    return result


def macro_map(success: Array, scores: Array) -> float:
    """Mean average precision over the models that have positives and negatives.

    Raises:
        DataError: no model has both.
    """
    precisions = average_precision(success, scores)
    if np.isnan(precisions).all():
        raise DataError("No model has both solved and unsolved questions: mAP is undefined.")
    return float(np.nanmean(precisions))


def macro_interval(
    success: Array,
    scores: Array,
    question_ids: npt.NDArray[np.object_],
    *,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """95 % bootstrap interval of :func:`macro_map`, resampling questions (percentile method).

    A resample in which a model lost its positives or negatives averages over the other models.
    """
    questions, row_question = np.unique(question_ids.astype(str), return_inverse=True)
    n = len(questions)
    rng = np.random.default_rng(seed)
    values = []
    for drawn in rng.multinomial(n, np.full(n, 1 / n), size=resamples):
        precisions = average_precision(success, scores, drawn[row_question].astype(np.float64))
        if not np.isnan(precisions).all():
            values.append(np.nanmean(precisions))
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def calibration_error(success: Array, probabilities: Array) -> float:
    """Expected calibration error (Guo et al. 2017), 0..1, mean over the models.

    Ten bins of equal width; in each the mean probability is compared with the mean success rate.
    """
    errors = []
    for m in range(success.shape[1]):
        rows = ~np.isnan(success[:, m])
        if not rows.any():
            continue
        p, y = probabilities[rows, m], success[rows, m]
        bins = np.minimum((p * _ECE_BINS).astype(int), _ECE_BINS - 1)
        gaps = np.bincount(bins, weights=p - y, minlength=_ECE_BINS)
        errors.append(np.abs(gaps).sum() / len(p))
    return float(np.mean(errors))

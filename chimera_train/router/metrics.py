"""How good confidences are: average precision, calibration error, and intervals.

Success rates come as (n, n_models) with NaN for pairs that were never graded; such pairs count
nowhere. Intervals are percentiles of the bootstrap over questions; those of differences take the
same resamples on both sides.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.router.labels import SOLVED

__all__ = [
    "Reliability",
    "average_precision",
    "calibration_error",
    "interval",
    "macro_map",
    "reliability",
    "resampled_map",
    "resampled_precision",
    "resamples",
]

Array = npt.NDArray[np.float64]

_BINS = 10


def average_precision(success: Array, scores: Array) -> Array:
    """Average precision of each model's scores, in 0..1, shape (n_models,).

    A question counts as positive where its success rate is at least one half. NaN for a model
    with positives or negatives only, for which ranking means nothing.

    Args:
        success: success rates, shape (n, n_models).
        scores: any increasing function of the confidence, shape (n, n_models).
    """
    return resampled_precision(success, scores, np.ones((1, len(success))))[0]


def macro_map(success: Array, scores: Array) -> float:
    """Mean average precision over the models that have positives and negatives.

    Raises:
        DataError: no model has both.
    """
    precisions = average_precision(success, scores)
    if np.isnan(precisions).all():
        raise DataError("No model has both solved and unsolved questions: mAP is undefined.")
    return float(np.nanmean(precisions))


def resamples(question_ids: npt.NDArray[np.object_], n: int, seed: int) -> Array:
    """How often each row counts in each of ``n`` resamples of the questions, shape (n, rows)."""
    questions, row_question = np.unique(question_ids.astype(str), return_inverse=True)
    size = len(questions)
    drawn = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=n)
    return drawn[:, row_question].astype(np.float64)


def resampled_precision(success: Array, scores: Array, counts: Array) -> Array:
    """``average_precision`` with rows that count ``counts`` times, (resamples, n_models).

    As scikit-learn has it (the sum over thresholds of recall gained times precision), for all
    resamples at once.

    Args:
        success: success rates, shape (n, n_models).
        scores: any increasing function of the confidence, shape (n, n_models).
        counts: shape (resamples, n).
    """
    result = np.full((len(counts), success.shape[1]), np.nan)
    for m in range(success.shape[1]):
        rows = np.flatnonzero(~np.isnan(success[:, m]))
        if not len(rows):
            continue
        rows = rows[np.argsort(-scores[rows, m], kind="stable")]
        # Equal scores are one threshold: what counts is its last row.
        last = np.flatnonzero(np.diff(scores[rows, m], append=np.nan) != 0)
        retrieved = counts[:, rows]
        solved = np.cumsum(retrieved * (success[rows, m] >= SOLVED), axis=1)[:, last]
        retrieved = np.cumsum(retrieved, axis=1)[:, last]
        ranked = (solved[:, -1] > 0) & (solved[:, -1] < retrieved[:, -1])
        solved, retrieved = solved[ranked], retrieved[ranked]
        gained = np.diff(solved, axis=1, prepend=0)
        precision = solved / np.maximum(retrieved, 1)  # nothing is gained where nothing is counted
        result[ranked, m] = (gained * precision).sum(axis=1) / solved[:, -1]
    return result


def resampled_map(precisions: Array) -> Array:
    """The macro mAP of each resample, shape (resamples,), from their ``resampled_precision``.

    A resample in which a model lost its positives or negatives averages over the other models; NaN
    where no model is left.
    """
    known = ~np.isnan(precisions)
    total = np.where(known, precisions, 0).sum(axis=1)
    n_known = known.sum(axis=1)
    return np.where(n_known > 0, total / np.maximum(n_known, 1), np.nan)


def interval(values: Array) -> list[float] | None:
    """The 95 % interval [low, high] of resampled values; None if fewer than half are numbers."""
    known = values[~np.isnan(values)]
    if 2 * len(known) < len(values) or not len(known):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return [float(low), float(high)]


@dataclass(frozen=True, slots=True)
class Reliability:
    """What became of the questions that a model was given some confidence on.

    Attributes:
        confidence: mean probability of each bin that is not empty, shape (bins,).
        success: mean success rate of the same questions.
        questions: how many they are.
    """

    confidence: Array
    success: Array
    questions: npt.NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error (Guo et al. 2017), 0..1; NaN without questions."""
        if not len(self.questions):
            return float("nan")
        gaps = np.abs(self.confidence - self.success)
        return float(np.average(gaps, weights=self.questions))


def reliability(success: Array, probabilities: Array) -> Reliability:
    """One model's, in ten bins of equal width; both arguments have the shape (n,)."""
    graded = ~np.isnan(success)
    p, y = probabilities[graded], success[graded]
    bins = np.minimum((p * _BINS).astype(int), _BINS - 1)
    questions = np.bincount(bins, minlength=_BINS)
    filled = questions > 0

    def means(values: Array) -> Array:
        return np.bincount(bins, weights=values, minlength=_BINS)[filled] / questions[filled]

    return Reliability(means(p), means(y), questions[filled])


def calibration_error(success: Array, probabilities: Array) -> float:
    """Mean over the models of their calibration errors; both arguments are (n, n_models)."""
    errors = [reliability(y, p).error for y, p in zip(success.T, probabilities.T, strict=True)]
    return float(np.nanmean(errors))

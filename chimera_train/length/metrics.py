"""How well predicted lengths order and bracket the real ones.

A scheduler uses ŷ to order requests, so the first figure is a rank distance; coverage and pinball
loss judge the quantiles around it.
"""

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

__all__ = ["bootstrap_interval", "coverage", "fold_distance", "kendall_distance", "pinball_loss"]

Numbers = npt.NDArray[np.float64]

_RESAMPLES = 200


def kendall_distance(truth: Numbers, predicted: Numbers) -> float:
    """Kendall-τ distance d = (1 − τ_b)/2: without ties, the share of pairs in the wrong order.

    0: same order; 0.5: unrelated; 1: reversed. If all values on either side are equal, τ_b is
    undefined; no pair is ordered then, which is what an unrelated order achieves: 0.5.
    """
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.5
    return float((1 - kendalltau(truth, predicted).statistic) / 2)


def fold_distance(truth: Numbers, predicted: Numbers, folds: npt.NDArray[np.int64]) -> float:
    """Mean over the folds of the Kendall distance within each.

    Predictions of different folds come from different forests, so rows are only compared within
    one. Folds whose lengths are all equal have nothing to order and do not count.
    """
    distances = [
        kendall_distance(truth[folds == fold], predicted[folds == fold])
        for fold in np.unique(folds)
        if np.ptp(truth[folds == fold]) > 0
    ]
    return float(np.mean(distances)) if distances else 0.5


def pinball_loss(truth: Numbers, predicted: Numbers, quantile: float) -> float:
    """Mean pinball loss of one predicted ``quantile``, tokens; lower is better."""
    error = truth - predicted
    return float(np.maximum(quantile * error, (quantile - 1) * error).mean())


def coverage(truth: Numbers, predicted: Numbers) -> float:
    """The share of lengths that do not exceed their predicted quantile; ideally the quantile."""
    return float((truth <= predicted).mean())


def bootstrap_interval(
    truth: Numbers,
    predicted: Numbers,
    folds: npt.NDArray[np.int64],
    programs: npt.ArrayLike,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """The 95 % percentile interval of :func:`fold_distance` over resampled programs.

    The stages of a program depend on each other, so whole programs are drawn, with replacement,
    within each fold. Pairs of copies of one row are ties on both sides, which τ_b leaves out.
    """
    _, program = np.unique(programs, return_inverse=True)
    members = np.split(np.argsort(program, kind="stable"), np.cumsum(np.bincount(program))[:-1])
    fold_of_program = folds[[rows[0] for rows in members]]
    strata = [np.flatnonzero(fold_of_program == fold) for fold in np.unique(folds)]
    distances = []
    for _ in range(_RESAMPLES):
        drawn = np.concatenate([rng.choice(stratum, size=len(stratum)) for stratum in strata])
        rows = np.concatenate([members[i] for i in drawn])
        distances.append(fold_distance(truth[rows], predicted[rows], folds[rows]))
    low, high = np.quantile(distances, [0.025, 0.975])
    return float(low), float(high)

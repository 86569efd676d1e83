"""How well predicted lengths order and bracket the real ones.

A scheduler uses ŷ to order requests, so the first figure is a rank distance; coverage and pinball
loss judge the quantiles around it.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = [
    "Numbers",
    "bootstrap_interval",
    "cell_distance",
    "coverage",
    "fold_distance",
    "kendall_distance",
    "pinball_loss",
    "resampled_interval",
    "split_by",
]

Numbers = npt.NDArray[np.float64]

_RESAMPLES = 200
_MOST_PROGRAMS = 10_000


def kendall_distance(truth: Numbers, predicted: Numbers) -> float:
    """Kendall-τ distance d = (1 − τ_b)/2: without ties, the share of pairs in the wrong order.

    0: same order; 0.5: unrelated; 1: reversed. If all values on either side are equal, τ_b is
    undefined; no pair is ordered then, which is what an unrelated order achieves: 0.5.

    scipy's τ_b, without the 0.3 ms that each call spends on a p-value: intervals of many small
    groups need 10⁵ calls.
    """
    order = np.lexsort((predicted, truth))
    distance: float = _distance(
        np.asarray(truth, dtype=np.float64)[order], np.asarray(predicted, dtype=np.float64)[order]
    )
    return distance


def fold_distance(truth: Numbers, predicted: Numbers, folds: npt.NDArray[np.int64]) -> float:
    """Mean over the folds of the Kendall distance within each.

    Predictions of different folds come from different forests, so rows are only compared within
    one. Folds whose lengths are all equal have nothing to order and do not count.
    """
    distances = []
    for fold in np.unique(folds):
        inside = folds == fold
        if np.ptp(truth[inside]) > 0:
            distances.append(kendall_distance(truth[inside], predicted[inside]))
    return float(np.mean(distances)) if distances else 0.5


def cell_distance(truth: Numbers, predicted: Numbers, cells: npt.NDArray[np.int64]) -> float:
    """Mean over the cells, weighted by their rows, of the Kendall distance within each.

    Cells whose lengths are all equal have nothing to order and do not count.
    """
    total, n_rows = 0.0, 0
    for inside in split_by(cells):
        if np.ptp(truth[inside]) > 0:
            total += kendall_distance(truth[inside], predicted[inside]) * len(inside)
            n_rows += len(inside)
    return total / n_rows if n_rows else 0.5


def split_by(codes: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The positions of each code, in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


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
    """The 95 % interval of :func:`fold_distance` over resampled programs.

    Pairs of copies of one row are ties on both sides, which τ_b leaves out.
    """
    return resampled_interval(
        lambda rows: fold_distance(truth[rows], predicted[rows], folds[rows]), folds, programs, rng
    )


def resampled_interval(
    statistic: Callable[[npt.NDArray[np.int64]], float],
    folds: npt.NDArray[np.int64],
    programs: npt.ArrayLike,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """The 95 % percentile interval of ``statistic`` (of row numbers) over resampled programs.

    The stages of a program depend on each other, so whole programs are drawn, with replacement,
    within each fold. Of more than 10,000 programs a resample draws that many, and what its
    statistic deviates from that of all rows is scaled down by the root of their share (the m out
    of n bootstrap; Bickel, Götze and van Zwet 1997).
    """
    _, program = np.unique(programs, return_inverse=True)
    sizes = np.bincount(program)
    rows_by_program = np.argsort(program, kind="stable")
    starts = np.cumsum(sizes) - sizes
    fold_of_program = folds[rows_by_program[starts]]
    strata = [np.flatnonzero(fold_of_program == fold) for fold in np.unique(folds)]
    share = min(1.0, _MOST_PROGRAMS / len(sizes))
    n_drawn = [max(1, round(share * len(stratum))) for stratum in strata]

    values = np.empty(_RESAMPLES)
    for resample in range(_RESAMPLES):
        drawn = np.concatenate(
            [rng.choice(stratum, size=n) for stratum, n in zip(strata, n_drawn, strict=True)]
        )
        rows_before = np.cumsum(sizes[drawn]) - sizes[drawn]
        within = np.arange(sizes[drawn].sum()) - np.repeat(rows_before, sizes[drawn])
        values[resample] = statistic(
            rows_by_program[np.repeat(starts[drawn], sizes[drawn]) + within]
        )
    low, high = np.quantile(values, [0.025, 0.975])
    if share < 1:
        of_all = statistic(np.arange(len(program)))
        low, high = (of_all + np.sqrt(share) * (end - of_all) for end in (low, high))
    return float(low), float(high)


@njit(cache=True, nogil=True)
def _distance(x: Numbers, y: Numbers) -> float:
    """``kendall_distance`` of pairs sorted by x, then y, in O(n log n) (Knight 1966); sorts y."""
    n = len(x)
    pairs = n * (n - 1) // 2
    tied_x = 0  # pairs with the same x
    tied_both = 0
    run_x = 0
    run_both = 0
    for i in range(1, n):
        run_x = run_x + 1 if x[i] == x[i - 1] else 0
        run_both = run_both + 1 if run_x > 0 and y[i] == y[i - 1] else 0
        tied_x += run_x
        tied_both += run_both
    discordant = _sort_counting(y)
    tied_y = 0
    run_y = 0
    for i in range(1, n):
        run_y = run_y + 1 if y[i] == y[i - 1] else 0
        tied_y += run_y
    if tied_x == pairs or tied_y == pairs:
        return 0.5
    concordant = pairs - tied_x - tied_y + tied_both - discordant
    tau = (concordant - discordant) / np.sqrt(pairs - tied_x) / np.sqrt(pairs - tied_y)
    return min(1.0, max(0.0, (1 - tau) / 2))


@njit(cache=True, nogil=True)
def _sort_counting(y: Numbers) -> int:
    """Sort ``y`` in place; how many pairs were in descending order."""
    n = len(y)
    merged = np.empty(n)
    inversions = 0
    width = 1
    while width < n:
        for start in range(0, n, 2 * width):
            middle = min(start + width, n)
            end = min(start + 2 * width, n)
            left, right = start, middle
            for place in range(start, end):
                if right == end or (left < middle and y[left] <= y[right]):
                    merged[place] = y[left]
                    left += 1
                else:
                    merged[place] = y[right]
                    right += 1
                    inversions += middle - left
        y[:] = merged
        width *= 2
    return inversions

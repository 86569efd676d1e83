"""What routing by confidence buys: accuracy at matched cost (after RouterBench and RouteLLM).

mAP mostly rewards knowing which questions are hard for every model, which moves no question to
another model. The gain asks what the router is for. A cost per question and model buys accuracy:
a curve runs from the cheapest model to the most accurate one. Mixing models at random gives the
upper hull of their points; an oracle that knows every outcome gives the best curve there is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.router.metrics import interval

__all__ = [
    "Curves",
    "pair_gains",
    "prices",
    "resampled_gain",
    "routed",
    "routing_curves",
    "routing_gain",
]

Array = npt.NDArray[np.float64]

_GRID_POINTS = 201  # a quarter, a half and three quarters of the way are among them
_PRICES = 512


@dataclass(frozen=True, slots=True)
class Curves:
    """Accuracy at mean costs from the cheapest model's to the most accurate one's.

    Attributes:
        budgets: mean costs of a question, shape (points,).
        routed: accuracy of the router at each.
        mixed: of mixing models at random.
        oracle: of knowing every outcome.
    """

    budgets: Array
    routed: Array
    mixed: Array
    oracle: Array

    @property
    def gain(self) -> float:
        """``routing_gain``; NaN where knowing outcomes is worth nothing."""
        mixed, oracle = self.mixed.mean(), self.oracle.mean()
        if oracle <= mixed:  # one model solves whatever any model solves
            return np.nan
        # Routing that is as good as mixing gains 0, and not what is left of rounding.
        return round(float((self.routed.mean() - mixed) / (oracle - mixed)), 12) + 0.0

    def at(self, share: float) -> dict[str, float]:
        """The point at ``share`` of the way from the cheapest to the most accurate model."""
        point = round(share * (len(self.budgets) - 1))
        return {
            "cost": float(self.budgets[point]),
            "routed": float(self.routed[point]),
            "mixed": float(self.mixed[point]),
            "oracle": float(self.oracle[point]),
        }


def routing_gain(success: Array, confidence: Array, cost: Array) -> float | None:
    """Area of the router's curve above random mixing, as a share of the oracle's.

    1 is the oracle, 0 is no better than a coin, below 0 is worse. None where there is nothing to
    trade: a cost is unknown, the cheapest model is also the most accurate, no question was tried
    on every model, or one model solves whatever any model solves.

    Args:
        success: success rates, shape (n, n_models); rows with NaN are left out.
        confidence: the router's success probabilities, shape (n, n_models).
        cost: mean cost of a question on each model, any unit, shape (n_models,).
    """
    curves = routing_curves(success, confidence, cost)
    return None if curves is None or np.isnan(curves.gain) else curves.gain


def routing_curves(success: Array, confidence: Array, cost: Array) -> Curves | None:
    """The curves whose areas ``routing_gain`` compares; None where there is nothing to trade."""
    return next(_curves(success, confidence, cost, np.ones((1, len(success)))))


def resampled_gain(success: Array, confidence: Array, cost: Array, counts: Array) -> Array:
    """``routing_gain`` with rows that count ``counts`` (resamples, n) times, shape (resamples,).

    NaN where it is None.
    """
    found = _curves(success, confidence, cost, counts)
    return np.array([np.nan if curves is None else curves.gain for curves in found])


def pair_gains(
    models: Sequence[str], success: Array, confidence: Array, cost: Array, counts: Array
) -> list[dict[str, Any]]:
    """The gain of choosing between two models only, for every pair with something to trade.

    ``ci`` is its 95 % interval, from rows that count ``counts`` (resamples, n) times.
    """
    pairs = []
    for pair in combinations(np.argsort(cost, kind="stable"), 2):
        columns = list(pair)
        of_pair = success[:, columns], confidence[:, columns], cost[columns]
        gain = routing_gain(*of_pair)
        if gain is not None:
            cheap, dear = (models[m] for m in columns)
            ci = interval(resampled_gain(*of_pair, counts))
            pairs.append({"cheap": cheap, "dear": dear, "gain": gain, "ci": ci})
    return pairs


def prices(scores: Array, cost: Array) -> Array:
    """One falling price of a unit of cost for each different outcome of ``routed``, thinned."""
    i, j = np.triu_indices(len(cost), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = ((scores[:, i] - scores[:, j]) / (cost[i] - cost[j])).ravel()
    switches: Array = np.unique(ratios[np.isfinite(ratios) & (ratios > 0)])
    if len(switches) > _PRICES:
        switches = np.quantile(switches, np.linspace(0, 1, _PRICES)).astype(np.float64)
    # No choice changes between two switching prices; beyond the last one the cheapest model wins.
    edges = np.concatenate([[0.0], switches, [2 * switches[-1] if len(switches) else 1.0]])
    return ((edges[1:] + edges[:-1]) / 2)[::-1]


def routed(scores: Array, cost: Array, at: Array) -> npt.NDArray[np.int64]:
    """The model with the highest score - price·cost: (prices, n) column numbers."""
    best = np.full((len(at), len(scores)), -np.inf)
    chosen = np.zeros(best.shape, dtype=np.int64)
    for m in range(len(cost)):
        value = scores[:, m] - at[:, None] * cost[m]
        better = value > best
        best[better], chosen[better] = value[better], m
    return chosen


def _curves(
    success: Array, confidence: Array, cost: Array, counts: Array
) -> Iterator[Curves | None]:
    """Of each row of ``counts``: what the policies of all rows come to, at the same budgets.

    A policy is a price, or a share of the questions for each of two models.
    """
    complete = ~np.isnan(success).any(axis=1)
    success, confidence, counts = success[complete], confidence[complete], counts[:, complete]
    mixed = [] if np.isnan(cost).any() or not len(success) else _hull(cost, success.mean(axis=0))
    if len(mixed) < 2:  # the cheapest model is the most accurate
        yield from [None] * len(counts)
        return
    budgets = np.linspace(cost[mixed[0]], cost[mixed[-1]], _GRID_POINTS)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    by_router, by_oracle = (
        _points(scores, success, cost, shares) for scores in (confidence, success)
    )
    for accuracy, router, oracle in zip(shares @ success, by_router, by_oracle, strict=True):
        yield Curves(
            budgets,
            routed=np.interp(budgets, *router),
            mixed=np.interp(budgets, cost[mixed], accuracy[mixed]),
            oracle=np.interp(budgets, *oracle),
        )


def _points(
    scores: Array, success: Array, cost: Array, shares: Array
) -> Iterator[tuple[Array, Array]]:
    """(cost, accuracy) by rising cost at every price, for each row of ``shares``."""
    chosen = routed(scores, cost, prices(scores, cost))
    costs = shares @ cost[chosen].T
    accuracies = shares @ success[np.arange(len(success)), chosen].T
    return zip(costs, accuracies, strict=True)


def _hull(cost: Array, accuracy: Array) -> list[int]:
    """The models on the upper hull, from the cheapest to the most accurate."""
    points = list(zip(cost.tolist(), accuracy.tolist(), strict=True))
    hull: list[int] = []
    for m in np.lexsort((-accuracy, cost)).tolist():
        if hull and points[m][1] <= points[hull[-1]][1]:
            continue  # dearer and no better
        while len(hull) > 1 and _rises_less(points[hull[-2]], points[hull[-1]], points[m]):
            hull.pop()
        hull.append(m)
    return hull


def _rises_less(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether the way from a to b rises no faster than the way from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])

"""What routing by confidence buys: accuracy at matched cost (after RouterBench and RouteLLM).

mAP mostly rewards knowing which questions are hard for every model, which moves no question to
another model. The gain asks what the router is for. A cost per question and model buys accuracy:
a curve runs from the cheapest model to the most accurate one. Mixing models at random gives the
upper hull of their points; an oracle that knows every outcome gives the best curve there is.
"""

import numpy as np
import numpy.typing as npt

__all__ = ["routing_gain"]

Array = npt.NDArray[np.float64]

_GRID_POINTS = 201
_PRICES = 512


def routing_gain(success: Array, confidence: Array, cost: Array) -> float | None:
    """Area of the router's curve above random mixing, as a share of the oracle's.

    1 is the oracle, 0 is no better than a coin, below 0 is worse. None where there is nothing to
    trade: a cost is unknown, the cheapest model is also the most accurate, or no question was
    tried on every model.

    Args:
        success: success rates, shape (n, n_models); rows with NaN are left out.
        confidence: the router's success probabilities, shape (n, n_models).
        cost: mean cost of a question on each model, any unit, shape (n_models,).
    """
    complete = ~np.isnan(success).any(axis=1)
    if np.isnan(cost).any() or not complete.any():
        return None
    success, confidence = success[complete], confidence[complete]
    accuracy = success.mean(axis=0)
    low, high = cost.min(), cost[np.lexsort((cost, -accuracy))[0]]
    if low == high:
        return None

    budgets = np.linspace(low, high, _GRID_POINTS)
    mixed = np.interp(budgets, *_hull(cost, accuracy)).mean()
    routed = np.interp(budgets, *_curve(confidence, success, cost)).mean()
    oracle = np.interp(budgets, *_curve(success, success, cost)).mean()
    # Knowing outcomes may be worth nothing: one model solves whatever any model solves.
    return float((routed - mixed) / (oracle - mixed)) if oracle > mixed else None


def _curve(scores: Array, success: Array, cost: Array) -> tuple[Array, Array]:
    """(cost, accuracy) of sending each question to argmax(score - price·cost), by rising cost."""
    i, j = np.triu_indices(len(cost), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = ((scores[:, i] - scores[:, j]) / (cost[i] - cost[j])).ravel()
    switches: Array = np.unique(ratios[np.isfinite(ratios) & (ratios > 0)])
    if len(switches) > _PRICES:
        switches = np.quantile(switches, np.linspace(0, 1, _PRICES)).astype(np.float64)
    # No choice changes between two switching prices; beyond the last one the cheapest model wins.
    edges = np.concatenate([[0.0], switches, [2 * switches[-1] if len(switches) else 1.0]])
    prices = ((edges[1:] + edges[:-1]) / 2)[::-1]
    chosen = np.argmax(scores[None] - prices[:, None, None] * cost, axis=2)
    return cost[chosen].mean(axis=1), success[np.arange(len(success)), chosen].mean(axis=1)


def _hull(cost: Array, accuracy: Array) -> tuple[Array, Array]:
    """The points on the upper hull, from the cheapest to the most accurate."""
    hull: list[tuple[float, float]] = []
    for m in np.lexsort((-accuracy, cost)):
        point = (float(cost[m]), float(accuracy[m]))
        if hull and point[1] <= hull[-1][1]:
            continue  # dearer and no better
        while len(hull) > 1 and _rises_less(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    costs, accuracies = np.array(hull).T
    return costs, accuracies


def _rises_less(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """Whether the way from a to b rises no faster than the way from a to c."""
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])

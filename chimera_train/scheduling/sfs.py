"""SFS's choice of an engine: the most useful answer that begins in time (SFS §5)."""

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place

__all__ = ["most_useful", "soonest"]

Floats = npt.NDArray[np.float64]


@in_place
def most_useful(
    confidence: Floats,
    cost: Floats,
    ttft_ms: Floats,
    up: npt.NDArray[np.bool_],
    ttft_target_ms: float,
    cost_weight: float,
    latency_weight_per_ms: float,
) -> int:
    """Of the engines whose estimated TTFT is within the target, that of the greatest utility.

    Utility is U = q − λ·cost, less δ·TTFT where latency has a weight (the relaxation of the
    constraint), which leaves out engines that begin nobody knows when. Of equals the one that
    begins sooner, then the first in pool order. The arrays have shape (n_engines,).

    Returns:
        -1 if there is no such engine.
    """
    chosen, best = -1, 0.0
    for engine in range(up.size):
        if not up[engine] or not ttft_ms[engine] <= ttft_target_ms:
            continue
        if latency_weight_per_ms > 0 and np.isinf(ttft_ms[engine]):
            continue
        utility = confidence[engine] - cost_weight * cost[engine]
        if latency_weight_per_ms > 0:
            utility -= latency_weight_per_ms * ttft_ms[engine]
        is_better = chosen < 0 or utility > best
        if is_better or (utility == best and ttft_ms[engine] < ttft_ms[chosen]):
            chosen, best = engine, utility
    return chosen


@in_place
def soonest(ttft_ms: Floats, up: npt.NDArray[np.bool_]) -> int:
    """The engine that is up (at least one is) and begins first; of equals the first."""
    chosen = -1
    for engine in range(up.size):
        if up[engine] and (chosen < 0 or ttft_ms[engine] < ttft_ms[chosen]):
            chosen = engine
    return chosen

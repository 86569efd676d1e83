"""Chimera's choice of an engine for a new program (Algorithm 1, lines 9–22)."""

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place

__all__ = ["choose_engine"]


@in_place
def choose_engine(
    load_ms: npt.NDArray[np.float64],
    confidence: npt.NDArray[np.float64],
    up: npt.NDArray[np.bool_],
    tau: float,
    delta_s: float,
    by_margin: bool,
) -> tuple[int, bool]:
    """The chosen engine, and whether it is an upgrade from the fastest.

    Start at m_fast, the engine of least load L; visit the others with L ≤ (1 + τ)·L_fast in order
    of L, and move to m when q[m] ≥ q* + Δs, where q* is the confidence of the engine that was
    moved to last (``by_margin``) or that of m_fast (otherwise the end result is the highest q that
    beats m_fast by Δs). An infinite τ admits every engine, also when L_fast is 0. Ties of L are
    visited in pool order.

    A move must also raise q, which matters only where Δs = 0: the published condition alone would
    there leave a faster engine for a slower one of equal confidence.

    The arrays have shape (n_engines,); at least one engine is up.
    """
    engine = fastest = chosen = _next_by_load(load_ms, up, -1)
    while True:
        engine = _next_by_load(load_ms, up, engine)
        if engine < 0:
            break
        if not np.isinf(tau) and load_ms[engine] > (1.0 + tau) * load_ms[fastest]:
            break
        bar = confidence[chosen if by_margin else fastest]
        if confidence[engine] >= bar + delta_s and confidence[engine] > confidence[chosen]:
            chosen = engine
    return chosen, chosen != fastest


@in_place
def _next_by_load(load_ms: npt.NDArray[np.float64], up: npt.NDArray[np.bool_], last: int) -> int:
    """Of the engines that are up the one after ``last`` in order of load; -1 if there is none."""
    found = -1
    for engine in range(load_ms.size):
        if not up[engine]:
            continue
        is_later = last < 0 or (load_ms[engine], engine) > (load_ms[last], last)
        if is_later and (found < 0 or load_ms[engine] < load_ms[found]):
            found = engine
    return found

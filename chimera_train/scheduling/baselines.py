"""The load balancers that every policy is measured against."""

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["fewest_requests", "next_in_turn"]


@njit(cache=True)
def next_in_turn(up: npt.NDArray[np.bool_], last: int) -> int:
    """The engine after ``last`` in pool order, cyclically, that is up (at least one is)."""
    engine = (last + 1) % up.size
    while not up[engine]:
        engine = (engine + 1) % up.size
    return engine


@njit(cache=True)
def fewest_requests(n_requests: npt.NDArray[np.int64], up: npt.NDArray[np.bool_], last: int) -> int:
    """The engine that is up (at least one is) and has the fewest requests.

    Of equals the next after ``last`` in turn, so that an idle pool is used evenly.
    """
    chosen = -1
    for offset in range(1, up.size + 1):
        engine = (last + offset) % up.size
        if up[engine] and (chosen < 0 or n_requests[engine] < n_requests[chosen]):
            chosen = engine
    return chosen

"""The load balancers that every policy is measured against."""

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place

__all__ = ["fewest_requests", "next_in_turn"]


@in_place
def next_in_turn(up: npt.NDArray[np.bool_], last: int) -> int:
    """The engine after ``last`` in pool order, cyclically, that is up (at least one is)."""
    engine = (last + 1) % up.size
    while not up[engine]:
        engine = (engine + 1) % up.size
    return engine


@in_place
def fewest_requests(
    outstanding: npt.NDArray[np.int64],
    queued: npt.NDArray[np.int64],
    up: npt.NDArray[np.bool_],
    last: int,
) -> int:
    """The engine that is up (at least one is) and has the fewest requests, sent or waiting.

    Of equals the next after ``last`` in turn, so that an idle pool is used evenly.
    """
    chosen, fewest = -1, 0
    for offset in range(1, up.size + 1):
        engine = (last + offset) % up.size
        n_requests = outstanding[engine] + queued[engine]
        if up[engine] and (chosen < 0 or n_requests < fewest):
            chosen, fewest = engine, n_requests
    return chosen

"""The scheduler's state as arrays, which compiled decisions work on.

Programs and requests have slots, whose numbers the caller hands out: the gateway by names, the
simulator by counting. A slot that was given back can be used again.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "FREE",
    "NOWHERE",
    "QUEUED",
    "RUNNING",
    "SchedulerState",
    "empty_state",
    "with_program_slots",
    "with_request_slots",
]

Ints = npt.NDArray[np.int64]

# Values of ``request_status``.
FREE, QUEUED, RUNNING = range(3)
# Value of ``program_engine``: the program has no engine.
NOWHERE = -1


class SchedulerState(NamedTuple):
    """Every array is int64 unless something else is said.

    Attributes:
        up: whether the engine can be used, bool, shape (n_engines,).
        ms_per_token: what one token in flight adds to L, float64, shape (n_engines,).
        window: most requests that may be outstanding at an engine, shape (n_engines,).
        outstanding: requests sent to an engine and neither complete nor failed, (n_engines,).
        in_flight_tokens: P, predicted tokens still to come from an engine's programs. Whole
            numbers, so that the sums are exact: when every program has ended, every load is
            exactly zero, however many predictions came and went.
        last: the engine that was chosen last, shape (1,).
        arrivals: requests queued so far, shape (1,).
        program_engine: engine of a program or NOWHERE, shape (program slots,).
        program_remaining: its predicted tokens still to come, shape (program slots,).
        program_overrun: what more is expected once those have come, shape (program slots,).
        program_behind: whether its requests are served behind all others, bool, (program slots,).
        request_program, request_engine, request_status: shape (request slots,).
        request_key: what a queue is ordered by, the least first, shape (request slots,).
        request_arrival: number in the order of arrival at the queues, shape (request slots,).
        request_overtaken: how many later ones were served before, shape (request slots,).
        queue: slots of the requests that wait for an engine, in no order, shape (n_engines,
            request slots).
        queue_length: how many those are, shape (n_engines,).
    """

    up: npt.NDArray[np.bool_]
    ms_per_token: npt.NDArray[np.float64]
    window: Ints
    outstanding: Ints
    in_flight_tokens: Ints
    last: Ints
    arrivals: Ints
    program_engine: Ints
    program_remaining: Ints
    program_overrun: Ints
    program_behind: npt.NDArray[np.bool_]
    request_program: Ints
    request_engine: Ints
    request_status: Ints
    request_key: Ints
    request_arrival: Ints
    request_overtaken: Ints
    queue: Ints
    queue_length: Ints


def empty_state(
    ms_per_token: Sequence[float], window: Sequence[int], *, programs: int, requests: int
) -> SchedulerState:
    """No programs on engines that are all up, with so many slots."""
    n = len(ms_per_token)
    return SchedulerState(
        up=np.ones(n, dtype=np.bool_),
        ms_per_token=np.array(ms_per_token, dtype=np.float64),
        window=np.array(window, dtype=np.int64),
        outstanding=np.zeros(n, dtype=np.int64),
        in_flight_tokens=np.zeros(n, dtype=np.int64),
        last=np.array([n - 1]),
        arrivals=np.zeros(1, dtype=np.int64),
        program_engine=np.full(programs, NOWHERE, dtype=np.int64),
        program_remaining=np.zeros(programs, dtype=np.int64),
        program_overrun=np.zeros(programs, dtype=np.int64),
        program_behind=np.zeros(programs, dtype=np.bool_),
        request_program=np.zeros(requests, dtype=np.int64),
        request_engine=np.zeros(requests, dtype=np.int64),
        request_status=np.zeros(requests, dtype=np.int64),
        request_key=np.zeros(requests, dtype=np.int64),
        request_arrival=np.zeros(requests, dtype=np.int64),
        request_overtaken=np.zeros(requests, dtype=np.int64),
        queue=np.zeros((n, requests), dtype=np.int64),
        queue_length=np.zeros(n, dtype=np.int64),
    )


def with_program_slots(state: SchedulerState, n: int) -> SchedulerState:
    """The same with ``n`` program slots, which are more."""
    return state._replace(
        program_engine=_longer(state.program_engine, n, NOWHERE),
        program_remaining=_longer(state.program_remaining, n),
        program_overrun=_longer(state.program_overrun, n),
        program_behind=_longer(state.program_behind, n),
    )


def with_request_slots(state: SchedulerState, n: int) -> SchedulerState:
    """The same with ``n`` request slots, which are more."""
    return state._replace(
        request_program=_longer(state.request_program, n),
        request_engine=_longer(state.request_engine, n),
        request_status=_longer(state.request_status, n),
        request_key=_longer(state.request_key, n),
        request_arrival=_longer(state.request_arrival, n),
        request_overtaken=_longer(state.request_overtaken, n),
        queue=_longer(state.queue, n),
    )


def _longer(array: npt.NDArray[Any], n: int, fill: int = 0) -> npt.NDArray[Any]:
    longer = np.full((*array.shape[:-1], n), fill, dtype=array.dtype)
    longer[..., : array.shape[-1]] = array
    return longer

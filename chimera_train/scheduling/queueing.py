"""The order of the requests that wait for one engine, with aging so that none starves.

Queues are not ordered: every pop is one scan, which is cheap for as many requests as are bearable.
"""

from chimera_train.compiled import in_place
from chimera_train.scheduling.state import SchedulerState

__all__ = ["BEHIND", "add", "only_behind", "pop", "remove"]

BEHIND = 1 << 30
"""Added to the key of what is served behind everything else; no program has so many tokens."""


@in_place
def add(state: SchedulerState, engine: int, request: int, key: int) -> None:
    """Queue a request; a smaller ``key`` is served earlier, equals in order of arrival."""
    state.request_key[request] = key
    state.request_arrival[request] = state.arrivals[0]
    state.request_overtaken[request] = 0
    state.arrivals[0] += 1
    state.queue[engine, state.queue_length[engine]] = request
    state.queue_length[engine] += 1


@in_place
def pop(state: SchedulerState, engine: int, aging: int) -> int:
    """Remove the request to serve next from the queue, which is not empty.

    The earliest of those that ``aging`` later arrivals have overtaken; if there is none, the least
    key, and the earliest among equals. Since a promoted request yields only to earlier ones, nobody
    is overtaken more than ``aging`` times. Requests behind (``BEHIND``) are a queue of their own,
    which is served while the other is empty.
    """
    queue = state.queue[engine, : state.queue_length[engine]]
    best = 0
    for position in range(1, queue.size):
        if _goes_before(state, queue[position], queue[best], aging):
            best = position
    request = queue[best]
    _delete(state, engine, best)
    arrival, is_behind = state.request_arrival[request], state.request_key[request] >= BEHIND
    for other in state.queue[engine, : state.queue_length[engine]]:
        if (state.request_key[other] >= BEHIND) == is_behind:
            state.request_overtaken[other] += state.request_arrival[other] < arrival
    return request


@in_place
def only_behind(state: SchedulerState, engine: int) -> bool:
    """Whether nobody waits for ``engine`` but behind."""
    for request in state.queue[engine, : state.queue_length[engine]]:
        if state.request_key[request] < BEHIND:
            return False
    return True


@in_place
def remove(state: SchedulerState, engine: int, request: int) -> None:
    """Take out one request that waits for ``engine``."""
    for position in range(state.queue_length[engine]):
        if state.queue[engine, position] == request:
            _delete(state, engine, position)
            return


@in_place
def _goes_before(state: SchedulerState, a: int, b: int, aging: int) -> bool:
    if (state.request_key[a] >= BEHIND) != (state.request_key[b] >= BEHIND):
        return state.request_key[a] < BEHIND
    a_promoted = state.request_overtaken[a] >= aging
    b_promoted = state.request_overtaken[b] >= aging
    if a_promoted != b_promoted:
        return a_promoted
    if not a_promoted and state.request_key[a] != state.request_key[b]:
        return state.request_key[a] < state.request_key[b]
    return state.request_arrival[a] < state.request_arrival[b]


@in_place
def _delete(state: SchedulerState, engine: int, position: int) -> None:
    state.queue_length[engine] -= 1
    state.queue[engine, position] = state.queue[engine, state.queue_length[engine]]

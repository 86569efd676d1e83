"""A multi-level feedback queue inside an engine: who has had the least service runs first.

FastServe's order, with the settings under which vllm-ltr compares with it. A request begins in
level 0 and falls to the next one when the steps it took part in have lasted a quantum in its level:
10 ms in the first, twice as long in each after it. One that has waited 3 s since it came, or last
ran, begins again in level 0. Before every step the requests are ordered by (level, arrival), and a
running one gives its place, or its KV blocks, up to a waiting one of a lower level's number, and is
computed again later.

Two things are this module's own. A request that was admitted is not preempted before it has had a
token, so that each admission leads on, however long the prompt. And nobody is preempted for a
request that the next step could not admit even then; what the prefix cache holds is counted there
as if it had to be computed.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place
from chimera_train.predict.block_pool import blocks_of
from chimera_train.predict.engine_arrays import (
    ARRIVAL,
    BLOCK_SIZE,
    BLOCKS,
    CHUNK,
    CHUNKED,
    COMPUTED,
    FREE_BLOCKS,
    GENERATED,
    MAX_SEQS,
    MAX_TOKENS,
    N_RUNNING,
    N_WAITING,
    PRIORITY,
    PROMPT,
    RUNNING,
    WAITING,
    EngineArrays,
)
from chimera_train.predict.engine_cohort import dissolve_cohort
from chimera_train.predict.engine_step import enqueue, preempt

__all__ = ["QUANTUM_MS", "STARVATION_MS", "Service", "charge", "no_service", "prepare", "submit"]

QUANTUM_MS = 10.0
STARVATION_MS = 3000.0


class Service(NamedTuple):
    """What the requests of every engine have had; the level is their priority in the engine.

    Attributes:
        had_ms: in its present level, shape (n_engines, slots).
        last_ms: when it came, or last ran, shape (n_engines, slots).
        has_token: whether it has had a token since it was admitted, bool, shape (n_engines, slots).
        began_ms: when the step under way began, shape (n_engines,).
    """

    had_ms: npt.NDArray[np.float64]
    last_ms: npt.NDArray[np.float64]
    has_token: npt.NDArray[np.bool_]
    began_ms: npt.NDArray[np.float64]


def no_service(engines: int, slots: int) -> Service:
    """Nothing, for so many."""
    shape = (engines, slots)
    return Service(
        np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_), np.zeros(engines)
    )


@in_place
def submit(service: Service, number: int, slot: int, now_ms: float) -> None:
    """A request comes to engine ``number``, in level 0."""
    service.had_ms[number, slot] = 0.0
    service.last_ms[number, slot] = now_ms


@in_place
def charge(service: Service, number: int, engine: EngineArrays, now_ms: float) -> None:
    """The step under way ends now: who took part in it may fall by a level, or by several."""
    dissolve_cohort(engine)
    requests = engine.requests
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        if requests[CHUNK, slot] == 0:
            continue
        had_ms = service.had_ms[number, slot] + now_ms - service.began_ms[number]
        while had_ms >= QUANTUM_MS * 2.0 ** requests[PRIORITY, slot]:
            had_ms -= QUANTUM_MS * 2.0 ** requests[PRIORITY, slot]
            requests[PRIORITY, slot] += 1
        service.had_ms[number, slot] = had_ms
        service.last_ms[number, slot] = now_ms
        tokens = requests[PROMPT, slot] + requests[GENERATED, slot]
        if requests[COMPUTED, slot] + requests[CHUNK, slot] == tokens:
            service.has_token[number, slot] = True


@in_place
def prepare(service: Service, number: int, engine: EngineArrays, now_ms: float) -> None:
    """Before a step of engine ``number`` is planned: promote who starves, and make room.

    The engine plans no step ahead, and none is under way.
    """
    dissolve_cohort(engine)
    requests, counts = engine.requests, engine.counts
    waiting = engine.queues[WAITING]
    n_waiting = counts[N_WAITING]
    counts[N_WAITING] = 0
    for position in range(n_waiting):
        slot = waiting[position]
        service.has_token[number, slot] = False
        if now_ms - service.last_ms[number, slot] >= STARVATION_MS:
            requests[PRIORITY, slot] = 0
            submit(service, number, slot, now_ms)
        enqueue(requests, engine.queues, counts, slot)
    _make_room(engine, service.has_token[number])


@in_place
def _make_room(engine: EngineArrays, has_token: npt.NDArray[np.bool_]) -> None:
    """Preempt for those who wait, the most urgent first, as far as the next step can admit them."""
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    budget, blocks = _left_by_running(engine)
    seats = limits[MAX_SEQS] - counts[N_RUNNING]
    position = 0
    while position < counts[N_WAITING] and budget > 0:
        slot = engine.queues[WAITING, position]
        tokens = requests[PROMPT, slot] + requests[GENERATED, slot]
        needed = blocks_of(tokens, limits[BLOCK_SIZE])
        if not limits[CHUNKED] and tokens > budget:
            return
        if not _can_join(engine, has_token, requests[PRIORITY, slot], seats, needed - blocks):
            return
        while seats == 0 or needed > blocks:
            victim = _victim(engine, has_token, requests[PRIORITY, slot])
            leaving = engine.queues[RUNNING, victim]
            blocks += blocks_of(
                requests[PROMPT, leaving] + requests[GENERATED, leaving], limits[BLOCK_SIZE]
            )
            budget += 1
            seats += 1
            preempt(engine, CHUNK, victim)
        seats -= 1
        blocks -= needed
        budget -= tokens
        position += 1


@in_place
def _left_by_running(engine: EngineArrays) -> tuple[int, int]:
    """Tokens and free blocks that the running requests leave of the next step."""
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    budget, blocks = limits[MAX_TOKENS], counts[FREE_BLOCKS]
    for slot in engine.queues[RUNNING, : counts[N_RUNNING]]:
        length = requests[PROMPT, slot] + requests[GENERATED, slot]
        chunk = min(length - requests[COMPUTED, slot], budget)
        after = blocks_of(requests[COMPUTED, slot] + chunk, limits[BLOCK_SIZE])
        blocks -= max(after - requests[BLOCKS, slot], 0)
        budget -= chunk
    return budget, blocks


@in_place
def _can_join(
    engine: EngineArrays,
    has_token: npt.NDArray[np.bool_],
    level: int,
    seats: int,
    lacking: int,
) -> bool:
    """Whether preempting every request behind ``level`` is enough for one that lacks blocks."""
    requests = engine.requests
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        if has_token[slot] and requests[PRIORITY, slot] > level:
            seats += 1
            lacking -= blocks_of(
                requests[PROMPT, slot] + requests[GENERATED, slot], engine.limits[BLOCK_SIZE]
            )
    return seats > 0 and lacking <= 0


@in_place
def _victim(engine: EngineArrays, has_token: npt.NDArray[np.bool_], level: int) -> int:
    """Position of the least urgent running request that may leave for one of ``level``, or -1."""
    found, worst = -1, (level + 1, -1)
    for position in range(engine.counts[N_RUNNING]):
        slot = engine.queues[RUNNING, position]
        urgency = (engine.requests[PRIORITY, slot], engine.requests[ARRIVAL, slot])
        if has_token[slot] and urgency > worst:
            found, worst = position, urgency
    return found

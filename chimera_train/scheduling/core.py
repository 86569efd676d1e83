"""The compiled events of a scheduler; the gateway calls them through ``scheduler.Scheduler``."""

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place
from chimera_train.scheduling import monitor, queueing
from chimera_train.scheduling.baselines import fewest_requests, next_in_turn
from chimera_train.scheduling.chimera import choose_engine
from chimera_train.scheduling.policy import CHIMERA, ROUND_ROBIN, CompiledPolicy
from chimera_train.scheduling.state import FREE, NOWHERE, QUEUED, RUNNING, SchedulerState

__all__ = ["NOBODY", "REASONS", "admit", "complete", "fail", "on_program_end", "on_tokens", "pop"]

Floats = npt.NDArray[np.float64]

REASONS = ("known_program", "in_turn", "shortest_queue", "fastest", "upgrade")
"""Why an engine was chosen, by the number that ``admit`` returns."""

_KNOWN, _IN_TURN, _SHORTEST, _FASTEST, _UPGRADE = range(5)

NOBODY = -1
"""What ``pop`` returns if no request is to be sent."""


@in_place
def admit(
    state: SchedulerState,
    policy: CompiledPolicy,
    program: int,
    request: int,
    remaining_tokens: Floats,
    confidence: Floats,
    load_ms: Floats,
) -> tuple[int, int, int]:
    """Choose an engine for a request in a free slot and queue it there.

    At least one engine is up, unless the program has one. ``remaining_tokens`` and ``confidence``
    are those of ``model.Request``, shape (n_engines,); ``load_ms`` becomes L as the policy saw it.

    Returns:
        The engine, the number of the reason, and the key that the queue is ordered by.
    """
    for each in range(load_ms.size):
        load_ms[each] = state.in_flight_tokens[each] * state.ms_per_token[each]
    engine, reason = state.program_engine[program], _KNOWN
    if engine == NOWHERE:
        engine, reason = _choose(state, policy, remaining_tokens, confidence, load_ms)
        state.last[0] = engine
    remaining = int(np.rint(remaining_tokens[engine]))
    key = remaining if policy.by_length else 0
    monitor.place(state, program, engine, remaining)
    queueing.add(state, engine, request, key)
    state.request_program[request] = program
    state.request_engine[request] = engine
    state.request_status[request] = QUEUED
    return engine, reason, key


@in_place
def pop(state: SchedulerState, policy: CompiledPolicy, engine: int) -> int:
    """The request to send to ``engine`` now; NOBODY if its window is full or nobody waits."""
    is_full = state.outstanding[engine] >= state.window[engine]
    if is_full or state.queue_length[engine] == 0:
        return NOBODY
    request = queueing.pop(state, engine, policy.aging)
    state.outstanding[engine] += 1
    state.request_status[request] = RUNNING
    return request


@in_place
def on_tokens(state: SchedulerState, request: int, n: int) -> None:
    """``n`` more output tokens of a request came."""
    monitor.stream(state, state.request_program[request], state.request_engine[request], n)


@in_place
def complete(state: SchedulerState, request: int) -> None:
    """A request has left; its program keeps its engine and remaining length."""
    engine = state.request_engine[request]
    if state.request_status[request] == RUNNING:
        state.outstanding[engine] -= 1
    else:
        queueing.remove(state, engine, request)
    state.request_status[request] = FREE


@in_place
def fail(state: SchedulerState, request: int) -> None:
    """A request, queued or running, will not complete; its program's load is cleared."""
    complete(state, request)
    monitor.clear(state, state.request_program[request], state.request_engine[request])


@in_place
def on_program_end(state: SchedulerState, program: int) -> None:
    """A program has ended, after its requests completed or failed."""
    monitor.forget(state, program)


@in_place
def _choose(
    state: SchedulerState,
    policy: CompiledPolicy,
    remaining_tokens: Floats,
    confidence: Floats,
    load_ms: Floats,
) -> tuple[int, int]:
    if policy.kind == CHIMERA:
        if policy.add_self:
            for each in range(load_ms.size):
                load_ms[each] += remaining_tokens[each] * state.ms_per_token[each]
        engine, upgraded = choose_engine(
            load_ms, confidence, state.up, policy.tau, policy.delta_s, policy.by_margin
        )
        return engine, _UPGRADE if upgraded else _FASTEST
    if policy.kind == ROUND_ROBIN:
        return next_in_turn(state.up, state.last[0]), _IN_TURN
    engine = fewest_requests(state.outstanding, state.queue_length, state.up, state.last[0])
    return engine, _SHORTEST

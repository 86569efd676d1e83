"""The compiled events of a scheduler; the gateway calls them through ``scheduler.Scheduler``."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place
from chimera_train.scheduling import monitor, queueing
from chimera_train.scheduling.baselines import fewest_requests, next_in_turn
from chimera_train.scheduling.chimera import choose_engine
from chimera_train.scheduling.policy import (
    BEST_EFFORT,
    CHIMERA,
    LEAST_LATE,
    LIVE_TO_THE_END,
    ROUND_ROBIN,
    SHED,
    UTILITY,
    CompiledPolicy,
)
from chimera_train.scheduling.sfs import most_useful, soonest
from chimera_train.scheduling.state import FREE, NOWHERE, QUEUED, RUNNING, SchedulerState

__all__ = [
    "NOBODY",
    "REASONS",
    "Views",
    "admit",
    "complete",
    "fail",
    "on_engine_down",
    "on_program_end",
    "on_tokens",
    "pop",
    "sends_at_once",
]

Floats = npt.NDArray[np.float64]

REASONS = (
    "known_program",
    "in_turn",
    "shortest_queue",
    "fastest",
    "upgrade",
    "most_useful",
    "late",
    "shed",
)
"""Why an engine was chosen, by the number that ``admit`` returns."""

_KNOWN, _IN_TURN, _SHORTEST, _FASTEST, _UPGRADE, _MOST_USEFUL, _LATE, _SHED = range(8)

NOBODY = -1
"""What ``pop`` returns if no request is to be sent."""


class Views(NamedTuple):
    """What is known of each engine when a request is to be placed, shape (n_engines,) each.

    Attributes:
        remaining_tokens, overrun_tokens, confidence: as in ``model.Request``.
        order_by: what its queue is ordered by, the least first: tokens or a rank. Zeros: by
            arrival.
        cost: of the request, in micro-dollars.
        ttft_ms, completion_ms: when it would have its first token and its last, as far as
            ``CompiledPolicy.estimate`` asks for it.
        load_ms: becomes L as the policy saw it.
    """

    remaining_tokens: Floats
    overrun_tokens: Floats
    order_by: Floats
    confidence: Floats
    cost: Floats
    ttft_ms: Floats
    completion_ms: Floats
    load_ms: Floats


@in_place
def admit(
    state: SchedulerState,
    policy: CompiledPolicy,
    program: int,
    request: int,
    views: Views,
    may_refuse: bool,
) -> tuple[int, int, int]:
    """Choose an engine for a request in a free slot and queue it there.

    At least one engine is up, unless the program has one; then only ``remaining_tokens``,
    ``overrun_tokens`` and ``order_by`` of the views count. Only a program without an engine is
    refused, and only if it ``may_refuse``.

    Returns:
        The engine, the number of the reason, and the key that the queue is ordered by. The engine
        is NOWHERE if the program is refused; nothing has changed then.
    """
    for each in range(state.up.size):
        views.load_ms[each] = state.in_flight_tokens[each] * state.ms_per_token[each]
    engine, reason = state.program_engine[program], _KNOWN
    if engine == NOWHERE:
        engine, reason = _choose(state, policy, views, may_refuse)
        if engine == NOWHERE:
            return NOWHERE, reason, 0
        state.last[0] = engine
        state.program_behind[program] = reason == _LATE and policy.overload == BEST_EFFORT
    remaining = int(np.rint(views.remaining_tokens[engine]))
    key = int(np.rint(views.order_by[engine]))
    if state.program_behind[program]:
        key += queueing.BEHIND
    overrun = int(np.rint(views.overrun_tokens[engine]))
    monitor.place(state, program, engine, remaining, overrun)
    queueing.add(state, engine, request, key)
    state.request_program[request] = program
    state.request_engine[request] = engine
    state.request_status[request] = QUEUED
    return engine, reason, key


@in_place
def pop(state: SchedulerState, policy: CompiledPolicy, engine: int) -> int:
    """The request to send to ``engine`` now; NOBODY if its window is full or nobody waits."""
    room = state.window[engine] - state.outstanding[engine]
    if room <= 0 or state.queue_length[engine] == 0:
        return NOBODY
    if (
        policy.overload == BEST_EFFORT
        and room <= policy.reserve * state.window[engine]
        and queueing.only_behind(state, engine)
    ):
        return NOBODY
    request = queueing.pop(state, engine, policy.aging)
    state.outstanding[engine] += 1
    state.request_status[request] = RUNNING
    return request


@in_place
def sends_at_once(state: SchedulerState, engine: int) -> bool:
    """Whether a request that is queued for ``engine`` now, not behind, is sent at once."""
    return state.outstanding[engine] < state.window[engine] and queueing.only_behind(state, engine)


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
def on_engine_down(state: SchedulerState, engine: int) -> None:
    """Choose the engine no more; its programs lose it.

    Its requests, queued and running, stay until they are reported complete or failed.
    """
    state.up[engine] = False
    monitor.evict(state, engine)


@in_place
def on_program_end(state: SchedulerState, program: int) -> None:
    """A program has ended, after its requests completed or failed."""
    monitor.forget(state, program)


@in_place
def _choose(
    state: SchedulerState, policy: CompiledPolicy, views: Views, may_refuse: bool
) -> tuple[int, int]:
    if policy.kind == CHIMERA:
        for each in range(state.up.size):
            if policy.add_self:
                views.load_ms[each] += views.remaining_tokens[each] * state.ms_per_token[each]
            elif policy.estimate == LIVE_TO_THE_END:
                views.load_ms[each] = views.completion_ms[each]
        engine, upgraded = choose_engine(
            views.load_ms, views.confidence, state.up, policy.tau, policy.delta_s, policy.by_margin
        )
        return engine, _UPGRADE if upgraded else _FASTEST
    if policy.kind == UTILITY:
        engine = most_useful(
            views.confidence,
            views.cost,
            views.ttft_ms,
            state.up,
            policy.ttft_target_ms,
            policy.cost_weight,
            policy.latency_weight_per_ms,
        )
        if engine >= 0:
            return engine, _MOST_USEFUL
        if policy.overload == LEAST_LATE:
            return soonest(views.ttft_ms, state.up), _LATE
        if policy.overload == SHED and may_refuse:
            return NOWHERE, _SHED
        last = state.last[0]
        return fewest_requests(state.outstanding, state.queue_length, state.up, last), _LATE
    if policy.kind == ROUND_ROBIN:
        return next_in_turn(state.up, state.last[0]), _IN_TURN
    engine = fewest_requests(state.outstanding, state.queue_length, state.up, state.last[0])
    return engine, _SHORTEST

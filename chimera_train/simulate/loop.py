"""The compiled loop of a simulation: programs arrive, the scheduler decides, engines step.

The scheduler is ``scheduling.core``, called at the events at which the gateway calls it; its
decisions take no time. A stage arrives when its predecessor completes, or when the tools in between
are done. An engine does not wait for what the end of a step sets free: it begins its next step at
once, and what is sent to it in that moment can join the one after.

An engine that shares no device runs by itself from one arrival to the next, unless a request
finishes; the tokens it made are told to the scheduler before every choice of an engine.

An engine that goes down loses its requests at once, and they are admitted again in that moment, in
the order in which they first arrived, each to begin anew. A program that has lost its engine goes
on, wherever it is sent, with what that engine's model did in the same stage: in its last one, if it
has fewer.

A request is named by its program, which has one at a time, and an engine's request by its slot.
"""

import numpy as np

from chimera_train.compiled import in_place, in_place_inlined, in_place_inner
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_cohort import dissolve_cohort
from chimera_train.predict.engine_run import advance
from chimera_train.predict.engine_state import clear
from chimera_train.predict.engine_step import end_step, enqueue, has_work
from chimera_train.predict.ttft import copy_expected, empty_like, first_and_last_ms
from chimera_train.scheduling import core
from chimera_train.scheduling.policy import (
    ALONE,
    LIVE_TO_THE_END,
    NO_ESTIMATE,
    UTILITY,
)
from chimera_train.scheduling.state import FREE, NOWHERE
from chimera_train.simulate import clock as clocks
from chimera_train.simulate import mlfq
from chimera_train.simulate import pending as heap
from chimera_train.simulate.events import PACE, UP
from chimera_train.simulate.sim import EnginePool, Programs, Sim

__all__ = ["run"]


@in_place
def run(sim: Sim) -> None:
    """Serve every program; the outcome is in ``sim.log``, ``sim.clock`` and the engines' counts."""
    arrival_ms, event_ms, later = sim.programs.arrival_ms, sim.events.at_ms, sim.later
    n_timed = sim.log.successor[0]
    arrived = happened = 0
    while True:
        engine = clocks.next_engine(sim.clock)
        end_ms = sim.clock.end_ms[engine]
        arriving_ms = arrival_ms[arrived] if arrived < n_timed else np.inf
        timed_ms = min(arriving_ms, event_ms[happened])
        next_ms = min(timed_ms, later.ms[0])
        if end_ms <= next_ms and end_ms < np.inf:
            _end_step(sim, engine, end_ms, timed_ms)
        elif end_ms == arriving_ms == later.ms[0] == np.inf:
            return  # whatever happens to the engines now
        elif event_ms[happened] == next_ms:
            _happen(sim, happened)
            happened += 1
        else:
            program = arrived
            if arriving_ms <= later.ms[0]:
                arrived += 1
                arriving_ms = arrival_ms[arrived] if arrived < n_timed else np.inf
            else:
                program = heap.pop(later)
            _arrive(sim, program, next_ms, min(arriving_ms, event_ms[happened]))


@in_place_inner
def _happen(sim: Sim, number: int) -> None:
    """What the timeline has next."""
    events = sim.events
    now_ms, engine, kind = events.at_ms[number], events.engine[number], events.kind[number]
    if kind == PACE:
        clocks.set_factor(sim.clock, engine, events.factor[number], now_ms)
    elif kind == UP:
        sim.state.up[engine] = True
    else:
        _take_down(sim, engine, now_ms)


@in_place_inner
def _take_down(sim: Sim, engine: int, now_ms: float) -> None:
    """The engine forgets everything, and its requests arrive once more.

    As in the gateway, but for a client that has been sent a part of the answer: that one gets an
    error there, and is taken to ask again at once here.
    """
    pool, state, log = sim.pool, sim.state, sim.log
    core.on_engine_down(state, engine)
    # A step is counted when it ends, but as extrapolated when it begins.
    pool.arrays.counts[engine, rows.STEPS] += sim.clock.end_ms[engine] < np.inf
    clocks.stop(sim.clock, engine, now_ms)
    clear(_engine(pool, engine), pool.usable_blocks[engine])
    pool.n_free[engine] = pool.free.shape[1]
    for slot in range(pool.free.shape[1]):
        pool.free[engine, slot] = slot
    for row in range(log.n[0]):
        program = log.program[row]
        is_there = state.request_status[program] != FREE and state.request_engine[program] == engine
        if is_there and log.current[program] == row:
            core.complete(state, program)
            log.restarts[row] += 1
            heap.push(sim.later, now_ms, program)


@in_place_inlined
def _arrive(sim: Sim, program: int, now_ms: float, timed_ms: float) -> None:
    """A program's next request arrives; the next thing that has a time happens at ``timed_ms``."""
    engine = _admit(sim, program, now_ms)
    if engine == NOWHERE:
        return
    _send(sim, engine)
    if sim.clock.end_ms[engine] == np.inf:
        _begin_step(sim, engine, now_ms, min(timed_ms, sim.later.ms[0]))


@in_place_inner
def _admit(sim: Sim, program: int, now_ms: float) -> int:
    """Let the scheduler choose an engine for a program's next request, or the one that lost its.

    Returns:
        That engine; NOWHERE if it refuses the program, which has ended then.
    """
    log = sim.log
    row, before = log.n[0], log.current[program]
    if before >= 0 and np.isnan(log.end_ms[before]):
        row = before
    else:
        log.program[row] = program
        log.stage_index[row] = 0 if before < 0 else log.stage_index[before] + 1
        log.arrival_ms[row] = now_ms
    engine = _choose(sim, program, row, now_ms)
    if engine == NOWHERE:
        log.refused_ms[program] = now_ms
        _follow(sim, now_ms)
        return NOWHERE
    log.current[program] = row
    log.n[0] = max(log.n[0], row + 1)
    return engine


@in_place_inlined
def _choose(sim: Sim, program: int, row: int, now_ms: float) -> int:
    """The engine of the request in ``row``; NOWHERE if a program that is new is refused."""
    programs, log, scratch = sim.programs, sim.log, sim.scratch
    is_free = sim.state.program_engine[program] == NOWHERE
    question = programs.question[program]
    stage = programs.first_stage[log.trajectory[program]] + log.stage_index[row]
    for engine in range(sim.state.up.size):
        if not sim.state.up[engine]:
            continue
        if is_free:
            if sim.needs_lengths:
                _tell_tokens(sim, engine)
            sample = int(programs.luck[program] * programs.n_samples[question, engine])
            scratch.trajectory[engine] = programs.first_trajectory[question, engine] + sample
            scratch.views.confidence[engine] = programs.confidence[question, engine]
            stage = _stage(programs, scratch.trajectory[engine], log.stage_index[row])
        scratch.views.remaining_tokens[engine] = programs.remaining_tokens[stage]
        scratch.views.overrun_tokens[engine] = programs.overrun_tokens[stage]
        scratch.views.order_by[engine] = programs.order_by[stage]
        if is_free and sim.policy.kind == UTILITY:
            scratch.views.cost[engine] = (
                sim.pool.input_cost[engine] * programs.prompt_tokens[stage]
                + sim.pool.output_cost[engine] * programs.remaining_tokens[stage]
            )
        if is_free and sim.policy.estimate != NO_ESTIMATE:
            _estimate(sim, engine, stage, now_ms)
    may_refuse = log.stage_index[row] + log.restarts[row] == 0
    chosen, _, _ = core.admit(sim.state, sim.policy, program, program, scratch.views, may_refuse)
    if chosen == NOWHERE:
        return NOWHERE
    if is_free:
        log.trajectory[program] = scratch.trajectory[chosen]
        stage = _stage(programs, scratch.trajectory[chosen], log.stage_index[row])
    log.stage[row] = stage
    log.engine[row] = chosen
    return chosen


@in_place_inlined
def _stage(programs: Programs, trajectory: int, index: int) -> int:
    """The stage of that index in a trajectory, or its last one."""
    first_stage = programs.first_stage
    return min(first_stage[trajectory] + index, first_stage[trajectory + 1] - 1)


@in_place_inner
def _estimate(sim: Sim, engine: int, stage: int, now_ms: float) -> None:
    """When a request of ``stage`` would have its first token and its last on ``engine``.

    Outputs are what they are predicted to be, those of other requests included; and the pace that
    of the moment. An engine that would not be sent it at once begins it nobody knows when.
    """
    programs, pool, views = sim.programs, sim.pool, sim.scratch.views
    if sim.policy.estimate != ALONE and not core.sends_at_once(sim.state, engine):
        views.ttft_ms[engine] = views.completion_ms[engine] = np.inf
        return
    scratch, arrays = sim.scratch.engine, _engine(pool, engine)
    busy_ms = sim.clock.end_ms[engine] - now_ms
    if sim.policy.estimate == ALONE or busy_ms == np.inf:
        empty_like(arrays, scratch, pool.usable_blocks[engine])
        busy_ms = 0.0
    else:
        dissolve_cohort(arrays)
        copy_expected(arrays, scratch, pool.longest[engine])
    remaining = int(np.rint(programs.remaining_tokens[stage]))
    ttft_ms, completion_ms = first_and_last_ms(
        scratch,
        pool.models[engine, : pool.model_size[engine]],
        pool.longest[engine],
        programs.prompt_tokens[stage],
        0,
        remaining,
        int(np.rint(programs.order_by[stage])) if pool.by_priority[engine] else 0,
        busy_ms,
        sim.policy.estimate == LIVE_TO_THE_END,
    )
    pace = 1.0
    if busy_ms > 0:
        pace = clocks.slowdown(sim.clock, engine)
    elif sim.policy.estimate != ALONE:
        pace = sim.clock.factor[engine]
    views.ttft_ms[engine] = busy_ms + pace * (ttft_ms - busy_ms)
    views.completion_ms[engine] = busy_ms + pace * (completion_ms - busy_ms)


@in_place_inlined
def _end_step(sim: Sim, engine: int, now_ms: float, timed_ms: float) -> None:
    """End the step under way; the next thing that has a time happens at ``timed_ms``."""
    clocks.end(sim.clock, engine)
    arrays = _engine(sim.pool, engine)
    if sim.by_service:
        mlfq.charge(sim.service, engine, arrays, now_ms)
    n_finished = end_step(arrays, now_ms)
    if has_work(arrays):
        # What is sent below can join the step after this one, so stop within this one.
        horizon_ms = now_ms if n_finished > 0 else min(timed_ms, sim.later.ms[0])
        _begin_step(sim, engine, now_ms, horizon_ms)
    for position in range(n_finished):
        sim.scratch.ended[position] = _complete(sim, engine, arrays.finished[position], now_ms)
    # The free place goes to a request that waits already; a next stage takes a round trip.
    _send(sim, engine)
    for position in range(n_finished):
        _continue(sim, sim.scratch.ended[position], now_ms)
    _send(sim, engine)
    if sim.clock.end_ms[engine] == np.inf:
        if has_work(arrays):
            _begin_step(sim, engine, now_ms, min(timed_ms, sim.later.ms[0]))
        else:
            clocks.become_idle(sim.clock, engine, now_ms)


@in_place_inlined
def _complete(sim: Sim, engine: int, slot: int, now_ms: float) -> int:
    """A slot's request has its last token; its program."""
    pool, log = sim.pool, sim.log
    program: int = pool.program[engine, slot]
    row = log.current[program]
    output = pool.arrays.requests[engine, rows.OUTPUT, slot]
    core.on_tokens(sim.state, program, output - pool.told_tokens[engine, slot])
    core.complete(sim.state, program)
    log.start_ms[row] = pool.arrays.times[engine, rows.START, slot]
    log.first_token_ms[row] = pool.arrays.times[engine, rows.FIRST_TOKEN, slot]
    log.end_ms[row] = now_ms
    log.preemptions[row] = pool.arrays.requests[engine, rows.PREEMPTIONS, slot]
    pool.free[engine, pool.n_free[engine]] = slot
    pool.n_free[engine] += 1
    return program


@in_place_inlined
def _continue(sim: Sim, program: int, now_ms: float) -> None:
    """The next stage of a program arrives, now or later, or the program has ended."""
    programs, log = sim.programs, sim.log
    stage = log.stage[log.current[program]] + 1
    if stage < programs.first_stage[log.trajectory[program] + 1]:
        if programs.tool_ms[stage] > 0:
            heap.push(sim.later, now_ms + programs.tool_ms[stage], program)
        else:
            _admit(sim, program, now_ms)
        return
    core.on_program_end(sim.state, program)
    _follow(sim, now_ms)


@in_place_inlined
def _follow(sim: Sim, now_ms: float) -> None:
    """A program has ended: let the next one that waits for that arrive when it has been thought."""
    successor = sim.log.successor[0]
    if successor < sim.programs.arrival_ms.size:
        heap.push(sim.later, now_ms + sim.programs.think_ms[successor], successor)
        sim.log.successor[0] += 1


@in_place_inlined
def _send(sim: Sim, engine: int) -> None:
    """Send the engine what the scheduler has for it."""
    # Mostly nothing: then this look is cheaper than the call.
    if sim.state.queue_length[engine] > 0:
        _send_waiting(sim, engine)


@in_place_inner
def _send_waiting(sim: Sim, engine: int) -> None:
    programs, pool, log = sim.programs, sim.pool, sim.log
    requests, times = pool.arrays.requests[engine], pool.arrays.times[engine]
    while True:
        program = core.pop(sim.state, sim.policy, engine)
        if program == core.NOBODY:
            return
        pool.n_free[engine] -= 1
        slot = pool.free[engine, pool.n_free[engine]]
        stage = log.stage[log.current[program]]
        for row in range(rows.REQUEST_ROWS):
            requests[row, slot] = 0
        if pool.by_priority[engine]:
            requests[rows.PRIORITY, slot] = sim.state.request_key[program]
        requests[rows.ARRIVAL, slot] = pool.submitted[engine]
        requests[rows.PROMPT, slot] = programs.prompt_tokens[stage]
        requests[rows.OUTPUT, slot] = programs.output_tokens[stage]
        requests[rows.EXPECTED, slot] = int(np.rint(programs.remaining_tokens[stage]))
        requests[rows.OVERRUN, slot] = int(np.rint(programs.overrun_tokens[stage]))
        requests[rows.STOPS, slot] = programs.stops[stage]
        times[rows.START, slot] = np.nan
        times[rows.FIRST_TOKEN, slot] = np.nan
        pool.program[engine, slot] = program
        pool.told_tokens[engine, slot] = 0
        pool.submitted[engine] += 1
        if sim.by_service:
            # Nobody waits before the engine, so it comes when it is sent.
            mlfq.submit(sim.service, engine, slot, log.arrival_ms[log.current[program]])
        enqueue(requests, pool.arrays.queues[engine], pool.arrays.counts[engine], slot)


@in_place_inner
def _begin_step(sim: Sim, engine: int, now_ms: float, horizon_ms: float) -> None:
    """Run the engine up to the horizon, or to a step that finishes a request."""
    clocks.become_busy(sim.clock, engine, now_ms)
    if clocks.shares(sim.clock, engine) or sim.log.successor[0] < sim.programs.arrival_ms.size:
        # Its pace may change at any time, or a program that ends elsewhere be followed by one here.
        horizon_ms = now_ms
    arrays = _engine(sim.pool, engine)
    if sim.by_service:
        mlfq.prepare(sim.service, engine, arrays, now_ms)
        horizon_ms = now_ms
    model = sim.pool.models[engine, : sim.pool.model_size[engine]]
    slowdown = clocks.slowdown(sim.clock, engine)
    start_ms, step_ms = advance(arrays, model, now_ms, horizon_ms, slowdown)
    clocks.begin(sim.clock, engine, start_ms, step_ms)
    if sim.by_service:
        sim.service.began_ms[engine] = start_ms


@in_place_inner
def _tell_tokens(sim: Sim, engine: int) -> None:
    """Tell the scheduler of the tokens that requests in the engine have had since."""
    pool = sim.pool
    requests, counts = pool.arrays.requests[engine], pool.arrays.counts[engine]
    for queue in (rows.RUNNING, rows.WAITING):
        n = counts[rows.N_RUNNING] if queue == rows.RUNNING else counts[rows.N_WAITING]
        for position in range(n):
            slot = pool.arrays.queues[engine, queue, position]
            fresh = requests[rows.GENERATED, slot] - pool.told_tokens[engine, slot]
            if queue == rows.RUNNING and position < counts[rows.N_COHORT]:
                fresh += counts[rows.COHORT_STEPS]
            if fresh > 0:
                core.on_tokens(sim.state, pool.program[engine, slot], fresh)
                pool.told_tokens[engine, slot] += fresh


@in_place_inlined
def _engine(pool: EnginePool, engine: int) -> EngineArrays:
    arrays = pool.arrays
    return EngineArrays(
        arrays.limits[engine],
        arrays.requests[engine],
        arrays.times[engine],
        arrays.queues[engine],
        arrays.counts[engine],
        arrays.step[engine],
        arrays.ahead[engine],
        arrays.finished[engine],
        arrays.room[engine],
        arrays.blocks[engine],
        arrays.table[engine],
        arrays.prompt_keys[engine],
        arrays.cache[engine],
    )

"""The activity monitor: where each program runs and how much work it still promises (§3.5)."""

from chimera_train.compiled import in_place
from chimera_train.scheduling.state import NOWHERE, SchedulerState

__all__ = ["clear", "evict", "forget", "place", "stream"]


@in_place
def place(
    state: SchedulerState, program: int, engine: int, tokens: int, overrun_tokens: int
) -> None:
    """The program runs on ``engine`` and ``tokens`` are still to come; replaces what was.

    Once those have come and it still runs, ``overrun_tokens`` more are expected.
    """
    _drop(state, program)
    state.program_engine[program] = engine
    state.program_remaining[program] = tokens
    state.program_overrun[program] = overrun_tokens
    state.in_flight_tokens[engine] += tokens


@in_place
def stream(state: SchedulerState, program: int, engine: int, tokens: int) -> None:
    """``tokens`` came from ``engine``; the remaining length never falls below zero.

    A program that has outlived what was expected is not about to end: the overrun is added, which
    doubles with each time that it is not enough, as what is left of a heavy tail does. Where no
    overrun is known, nothing is expected any more. Tokens from an engine that the program has left
    change nothing.
    """
    if state.program_engine[program] == engine:
        before = state.program_remaining[program]
        after = before - tokens
        while after <= 0 < state.program_overrun[program]:
            after += state.program_overrun[program]
            state.program_overrun[program] *= 2
        after = max(after, 0)
        state.program_remaining[program] = after
        state.in_flight_tokens[engine] += after - before


@in_place
def clear(state: SchedulerState, program: int, engine: int) -> None:
    """Nothing more is to come from ``engine`` for now; the program keeps its engine."""
    if state.program_engine[program] == engine:
        _drop(state, program)


@in_place
def forget(state: SchedulerState, program: int) -> None:
    """The program has ended."""
    _drop(state, program)
    state.program_engine[program] = NOWHERE
    state.program_behind[program] = False


@in_place
def evict(state: SchedulerState, engine: int) -> None:
    """Every program of ``engine`` loses it, and the engine its load."""
    for program in range(state.program_engine.size):
        if state.program_engine[program] == engine:
            forget(state, program)


@in_place
def _drop(state: SchedulerState, program: int) -> None:
    engine = state.program_engine[program]
    if engine != NOWHERE:
        state.in_flight_tokens[engine] -= state.program_remaining[program]
        state.program_remaining[program] = 0

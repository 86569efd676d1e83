"""The activity monitor: where each program runs and how much work it still promises (§3.5)."""

from chimera_train.compiled import in_place
from chimera_train.scheduling.state import NOWHERE, SchedulerState

__all__ = ["clear", "evict", "forget", "place", "stream"]


@in_place
def place(state: SchedulerState, program: int, engine: int, tokens: int) -> None:
    """The program runs on ``engine`` and ``tokens`` are still to come; replaces what was."""
    _drop(state, program)
    state.program_engine[program] = engine
    state.program_remaining[program] = tokens
    state.in_flight_tokens[engine] += tokens


@in_place
def stream(state: SchedulerState, program: int, engine: int, tokens: int) -> None:
    """``tokens`` came from ``engine``; the remaining length never falls below zero.

    Tokens from an engine that the program has left change nothing.
    """
    if state.program_engine[program] == engine:
        seen = min(tokens, state.program_remaining[program])
        state.program_remaining[program] -= seen
        state.in_flight_tokens[engine] -= seen


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

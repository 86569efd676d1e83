"""What the compiled loop of a simulation works on: all of its state, as arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.scheduling.core import Views
from chimera_train.scheduling.policy import CompiledPolicy
from chimera_train.scheduling.state import SchedulerState
from chimera_train.simulate.clock import StepClock
from chimera_train.simulate.events import Timeline
from chimera_train.simulate.mlfq import Service
from chimera_train.simulate.pending import Pending

__all__ = ["EnginePool", "Log", "Programs", "Scratch", "Sim"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Programs(NamedTuple):
    """Who arrives, in order, and what would become of them on each engine.

    Attributes:
        arrival_ms: shape (n,); NaN for the last ones if they arrive when an earlier one has ended.
        think_ms: how long after it then, shape (n,).
        question, luck: as in ``Arrivals``, shape (n,).
        first_trajectory, n_samples, confidence: as in ``Workload``, shape (n_questions,
            n_engines).
        first_stage, prompt_tokens, output_tokens, remaining_tokens, overrun_tokens, stops,
            tool_ms: as in ``Workload``.
        order_by: as ``Workload.order_by`` has it for the policy's order.
    """

    arrival_ms: Floats
    think_ms: Floats
    question: Ints
    luck: Floats
    first_trajectory: Ints
    n_samples: Ints
    confidence: Floats
    first_stage: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    remaining_tokens: Floats
    overrun_tokens: Floats
    order_by: Floats
    stops: npt.NDArray[np.bool_]
    tool_ms: Floats


class EnginePool(NamedTuple):
    """The engines.

    Attributes:
        arrays: ``EngineArrays`` of them all, each array with one more dimension, the first.
        models: compiled step-time models, shape (n_engines, size of the largest).
        model_size: their sizes, shape (n_engines,).
        by_priority: whether an engine serves by priority, bool, shape (n_engines,).
        usable_blocks: KV blocks of an engine, shape (n_engines,).
        longest: tokens of the longest request that it completes, shape (n_engines,).
        input_cost, output_cost: micro-dollars per token, shape (n_engines,).
        program: whose request is in a slot, shape (n_engines, slots).
        told_tokens: its output tokens that the scheduler was told of, shape (n_engines, slots).
        free: slots without a request, shape (n_engines, slots).
        n_free: how many those are, shape (n_engines,).
        submitted: requests sent to an engine so far, shape (n_engines,).
    """

    arrays: EngineArrays
    models: Floats
    model_size: Ints
    by_priority: npt.NDArray[np.bool_]
    usable_blocks: Ints
    longest: Ints
    input_cost: Floats
    output_cost: Floats
    program: Ints
    told_tokens: Ints
    free: Ints
    n_free: Ints
    submitted: Ints


class Log(NamedTuple):
    """Every request, in order of arrival; times in ms, shape (most requests there can be,).

    Attributes:
        n: how many there are, shape (1,).
        program: its number.
        stage_index: how many requests its program had before.
        stage: row of the workload's stages.
        engine: that served it, or is to.
        arrival_ms, start_ms, first_token_ms, end_ms: when it arrived, its first step began, its
            first token came, and its last.
        preemptions: how often it lost its KV blocks, since it last began.
        restarts: how often it lost its engine.
        current: row of each program's request, shape (n_programs,); -1 before it arrives, and if it
            was refused.
        trajectory: what each program follows, shape (n_programs,).
        refused_ms: when a program was refused, shape (n_programs,); NaN if it was not.
        successor: the next program that arrives when another one has ended, shape (1,).
    """

    n: Ints
    program: Ints
    stage_index: Ints
    stage: Ints
    engine: Ints
    arrival_ms: Floats
    start_ms: Floats
    first_token_ms: Floats
    end_ms: Floats
    preemptions: Ints
    restarts: Ints
    current: Ints
    trajectory: Ints
    refused_ms: Floats
    successor: Ints


class Scratch(NamedTuple):
    """What is made once and used at every event.

    Attributes:
        views: what the scheduler is told of each engine.
        trajectory: what a program would follow on each engine, shape (n_engines,).
        ended: whose requests a step has finished, shape (slots,).
        engine: on which estimates are made; it has room for one request more than any engine.
    """

    views: Views
    trajectory: Ints
    ended: Ints
    engine: EngineArrays


class Sim(NamedTuple):
    """Everything that a simulation changes or looks at; ``service`` only where ``by_service``."""

    programs: Programs
    events: Timeline
    pool: EnginePool
    clock: StepClock
    state: SchedulerState
    policy: CompiledPolicy
    needs_lengths: bool
    by_service: bool
    service: Service
    later: Pending
    log: Log
    scratch: Scratch

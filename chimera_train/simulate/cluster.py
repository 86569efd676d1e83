"""A pool in simulated time: what ``loop`` needs, and what it leaves, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import Pool, Price
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_state import empty_engine, max_request_tokens
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.scheduling.core import Views
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import MLFQ, PolicySettings
from chimera_train.scheduling.scheduler import scheduler_arguments
from chimera_train.scheduling.state import SchedulerState, empty_state
from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.clock import StepClock, step_clock
from chimera_train.simulate.engine import servable
from chimera_train.simulate.events import EngineEvent, timeline
from chimera_train.simulate.loop import run
from chimera_train.simulate.mlfq import no_service
from chimera_train.simulate.outcome import Simulation, tables
from chimera_train.simulate.pending import no_pending
from chimera_train.simulate.sharing import sharing_curves
from chimera_train.simulate.sim import EnginePool, Log, Programs, Scratch, Sim
from chimera_train.simulate.workload import Workload

__all__ = ["simulate_once"]


def simulate_once(
    pool: Pool,
    models: Mapping[str, StepTimeModel],
    workload: Workload,
    policy: PolicySettings,
    arrivals: Arrivals,
    events: Sequence[EngineEvent] = (),
) -> Simulation:
    """Serve ``arrivals`` on ``pool`` under ``policy``; the arguments determine everything.

    ``models`` has each engine's step-time model by the engine's name; engines of one device group
    slow each other down by the sharing curve of their models. ``events`` befall the engines, unless
    every program has ended before.

    Raises:
        ConfigError: an engine has no step-time model; or as ``timeline`` and ``Workload.order_by``.
        DataError: the workload lacks an engine's model, or has a stage that the engine can never
            run; or as ``sharing_curves``.
    """
    for spec in pool.engines:
        if spec.name not in models:
            raise ConfigError(f"Engine '{spec.name}' has no step-time model: calibrate it.")
        _check_servable(spec.name, spec.model, models[spec.name], workload)
    names = [spec.name for spec in pool.engines]
    of_engines = [models[name] for name in names]
    n_programs = arrivals.times_ms.size
    state = _state(pool, of_engines, policy, n_programs)
    by_service = policy.order == MLFQ
    if by_service:
        state.window[:] = n_programs
    engines = _engines(pool, of_engines, int(state.window.max()))
    if by_service:
        engines.arrays.limits[:, rows.ASYNC] = False
    sim = Sim(
        programs=_programs(pool, workload, arrivals, workload.order_by(policy.order)),
        events=timeline(events, names),
        pool=engines,
        clock=_clock(pool, models),
        state=state,
        policy=policy.compiled(),
        needs_lengths=policy.needs_lengths,
        by_service=by_service,
        service=no_service(*engines.program.shape if by_service else (0, 0)),
        later=no_pending(n_programs),
        log=_log(workload, arrivals),
        scratch=_scratch(of_engines, int(state.window.max())),
    )
    run(sim)
    programs, requests = tables(
        sim.log, workload, arrivals, names, sim.pool.input_cost, sim.pool.output_cost
    )
    counts = sim.pool.arrays.counts
    return Simulation(
        programs,
        requests,
        busy_ms=dict(zip(names, sim.clock.busy_ms.tolist(), strict=True)),
        steps=dict(zip(names, counts[:, rows.STEPS].tolist(), strict=True)),
        extrapolated_steps=dict(zip(names, counts[:, rows.EXTRAPOLATED].tolist(), strict=True)),
    )


def _check_servable(name: str, model: str, step_time: StepTimeModel, workload: Workload) -> None:
    if model not in workload.models:
        raise DataError(f"The workload has no programs of '{model}', which engine '{name}' serves.")
    info = step_time.engine
    rows = workload.stages_of(model)
    fits = servable(info, workload.prompt_tokens[rows], workload.output_tokens[rows])
    if not fits.all():
        row = rows[fits.argmin()]
        trajectory = np.searchsorted(workload.first_stage, row, side="right") - 1
        raise DataError(
            f"Engine '{name}' can never run a stage of program"
            f" '{workload.program_ids[trajectory]}': {workload.prompt_tokens[row]} prompt and"
            f" {workload.output_tokens[row]} output tokens exceed its max_model_len"
            f" ({info.max_model_len} tokens) or its KV memory ({info.num_kv_blocks} blocks of"
            f" {info.block_size} tokens)."
        )


def _state(
    pool: Pool, models: Sequence[StepTimeModel], policy: PolicySettings, n_programs: int
) -> SchedulerState:
    profiles = [
        EngineProfile(spec.name, spec.model, model.decode_ms_per_token, model.max_batch_size)
        for spec, model in zip(pool.engines, models, strict=True)
    ]
    return empty_state(
        *scheduler_arguments(profiles, policy), programs=n_programs, requests=n_programs
    )


def _programs(
    pool: Pool, workload: Workload, arrivals: Arrivals, order_by: npt.NDArray[np.float64]
) -> Programs:
    columns = [list(workload.models).index(spec.model) for spec in pool.engines]
    n = len(arrivals.times_ms)
    think_ms = np.zeros(n) if arrivals.think_ms is None else arrivals.think_ms
    overrun = workload.overrun_tokens
    if overrun is None:
        overrun = np.zeros(len(workload.remaining_tokens))
    return Programs(
        arrival_ms=_floats(arrivals.times_ms),
        think_ms=_floats(think_ms),
        question=_ints(arrivals.questions),
        luck=_floats(arrivals.luck),
        first_trajectory=_ints(workload.first_trajectory[:, columns]),
        n_samples=_ints(workload.n_samples[:, columns]),
        confidence=_floats(workload.confidence[:, columns]),
        first_stage=_ints(workload.first_stage),
        prompt_tokens=_ints(workload.prompt_tokens),
        output_tokens=_ints(workload.output_tokens),
        remaining_tokens=_floats(workload.remaining_tokens),
        overrun_tokens=_floats(overrun),
        order_by=_floats(order_by),
        stops=np.array(workload.stops, dtype=np.bool_, order="C"),
        tool_ms=_floats(workload.tool_ms),
    )


# Copies, since what comes from another process may be read-only, or in another order: for numba
# that would be another type, and all would be compiled again.


def _floats(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64, order="C")


def _ints(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64, order="C")


def _engines(pool: Pool, models: Sequence[StepTimeModel], slots: int) -> EnginePool:
    n = len(models)
    # Dollars per million tokens are micro-dollars per token; what has no price costs nothing.
    prices = [spec.price or Price(input_usd_per_m=0, output_usd_per_m=0) for spec in pool.engines]
    engines = [
        empty_engine(model.engine, slots, caching=model.engine.enable_prefix_caching)
        for model in models
    ]
    compiled = [model.compiled() for model in models]
    return EnginePool(
        arrays=EngineArrays(*(_stack(arrays) for arrays in zip(*engines, strict=True))),
        models=_stack(compiled),
        model_size=np.array([model.size for model in compiled]),
        by_priority=np.array([model.engine.scheduling_policy == "priority" for model in models]),
        usable_blocks=np.array([engine.counts[rows.FREE_BLOCKS] for engine in engines]),
        longest=np.array([max_request_tokens(model.engine) for model in models]),
        input_cost=np.array([price.input_usd_per_m for price in prices]),
        output_cost=np.array([price.output_usd_per_m for price in prices]),
        program=np.zeros((n, slots), dtype=np.int64),
        told_tokens=np.zeros((n, slots), dtype=np.int64),
        free=np.tile(np.arange(slots), (n, 1)),
        n_free=np.full(n, slots),
        submitted=np.zeros(n, dtype=np.int64),
    )


def _stack(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The arrays along a new first axis, filled up to the largest with zeros."""
    shape = np.max([array.shape for array in arrays], axis=0)
    stacked = np.zeros((len(arrays), *shape), dtype=arrays[0].dtype)
    for row, array in zip(stacked, arrays, strict=True):
        row[tuple(slice(n) for n in array.shape)] = array
    return stacked


def _clock(pool: Pool, models: Mapping[str, StepTimeModel]) -> StepClock:
    curves = sharing_curves(pool, models)
    devices = {group: number for number, group in enumerate(curves)}
    return step_clock(
        [devices.get(spec.device_group or "", -1) for spec in pool.engines], list(curves.values())
    )


def _log(workload: Workload, arrivals: Arrivals) -> Log:
    n_stages = np.diff(workload.first_stage)
    longest = np.maximum.reduceat(n_stages, workload.first_trajectory[:, 0])
    n_programs = arrivals.times_ms.size
    n_requests = int(longest[arrivals.questions].sum())
    return Log(
        n=np.zeros(1, dtype=np.int64),
        program=np.zeros(n_requests, dtype=np.int64),
        stage_index=np.zeros(n_requests, dtype=np.int64),
        stage=np.zeros(n_requests, dtype=np.int64),
        engine=np.zeros(n_requests, dtype=np.int64),
        arrival_ms=np.full(n_requests, np.nan),
        start_ms=np.full(n_requests, np.nan),
        first_token_ms=np.full(n_requests, np.nan),
        end_ms=np.full(n_requests, np.nan),
        preemptions=np.zeros(n_requests, dtype=np.int64),
        restarts=np.zeros(n_requests, dtype=np.int64),
        current=np.full(n_programs, -1),
        trajectory=np.zeros(n_programs, dtype=np.int64),
        refused_ms=np.full(n_programs, np.nan),
        successor=np.array([np.count_nonzero(~np.isnan(arrivals.times_ms))]),
    )


def _scratch(models: Sequence[StepTimeModel], slots: int) -> Scratch:
    largest = max(models, key=lambda model: model.engine.block_size)
    return Scratch(
        views=Views(*(np.zeros(len(models)) for _ in Views._fields)),
        trajectory=np.zeros(len(models), dtype=np.int64),
        ended=np.zeros(slots, dtype=np.int64),
        engine=empty_engine(largest.engine, slots + 1),
    )

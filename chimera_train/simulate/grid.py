"""The cells of a sweep, each with everything that decides its runs."""

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import numpy.typing as npt

import chimera_train
from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import Pool, load_pool
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.ranker import Ranker
from chimera_train.predict.router import Router, load_router
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.scheduling.policy import PolicySettings, RoundRobin
from chimera_train.simulate.arrivals import (
    Arrivals,
    closed_loop,
    deterministic,
    mmpp,
    poisson,
    recorded,
    rescaled,
)
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.events import EngineEvent
from chimera_train.simulate.metrics import OnTime
from chimera_train.simulate.outcome import Simulation
from chimera_train.simulate.recorded import read_arrival_times
from chimera_train.simulate.settings import (
    PLAIN,
    AblationSettings,
    ArrivalSettings,
    ClosedLoopSettings,
    RecordedSettings,
    SweepSettings,
)
from chimera_train.simulate.workload import ORACLE, Oracle, Workload, workload_from_traces
from chimera_train.traces.store import load_traces

__all__ = ["Cell", "Inputs", "load_grid", "run_key", "simulate"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """A pool with its step-time models, by engine, what its programs do, and what befalls it.

    Attributes:
        path: of the pool file.
        predictors: ``PLAIN``, or the name of the ablation whose predictors are used.
        digest: of everything here but these two.
    """

    path: str
    predictors: str
    pool: Pool
    models: Mapping[str, StepTimeModel]
    workload: Workload
    events: tuple[EngineEvent, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One pool under one policy at one rate (None: it follows from what was recorded, or users).

    Attributes:
        draw: the arrivals under a seed, called with (workload, seed=…).
        on_time: what its figures are measured against.
    """

    inputs: Inputs
    policy: PolicySettings
    rate_per_s: float | None
    draw: Callable[..., Arrivals]
    on_time: OnTime | None = None


def load_grid(settings: SweepSettings) -> list[Cell]:
    """Every cell of a sweep, all inputs loaded and checked.

    Raises:
        ConfigError: a pool or a coefficient file is missing or superfluous, two pools give one name
            to different engines, more recorded arrivals are wanted than there are, an event is of
            an engine of none of the pools, or no engine of one would be up.
        DataError: traces, predictors, coefficients, sharing curves or recorded arrivals cannot be
            read or do not cover the pools, or an engine can never run a stage of the traces.
    """
    inputs = _load(settings)
    policies = list(itertools.chain(*settings.policies))
    on_time = None if settings.on_time is None else OnTime(**settings.on_time.model_dump())
    return [
        Cell(of_pool, policy, rate_per_s, draw, on_time)
        for of_pool, (rate_per_s, draw), policy in itertools.product(
            inputs, list(_draws(settings.arrivals)), policies
        )
        if of_pool.predictors == PLAIN or settings.ablations[of_pool.predictors].concerns(policy)
    ]


def simulate(cell: Cell, seed: int) -> Simulation:
    """One run of a cell."""
    inputs = cell.inputs
    arrivals = cell.draw(inputs.workload, seed=seed)
    return simulate_once(
        inputs.pool, inputs.models, inputs.workload, cell.policy, arrivals, inputs.events
    )


def run_key(cell: Cell, seed: int) -> str:
    """A hash of what decides the figures of a run, the code that it runs included."""
    arrivals = cell.draw(cell.inputs.workload, seed=seed)
    return _digest(
        _code(), cell.inputs.digest, cell.policy.model_dump(), asdict(arrivals), cell.on_time
    )


def _load(settings: SweepSettings) -> list[Inputs]:
    pools = {str(path): load_pool(path) for path in settings.pools}
    _check_names(settings, pools)
    models = {name: StepTimeModel.load(path) for name, path in settings.latency.items()}
    traces = load_traces(settings.traces)
    for pool in pools.values():
        for spec in pool.engines:
            fitted = models[spec.name].engine.model
            if fitted != spec.model:
                raise DataError(
                    f"{settings.latency[spec.name]} was calibrated on '{fitted}', but engine"
                    f" '{spec.name}' serves '{spec.model}': calibrate that."
                )
    result = []
    for name in (PLAIN, *settings.ablations):
        predictors = _predictors(settings, settings.ablations.get(name))
        for path, pool in pools.items():
            workload = workload_from_traces(
                traces,
                [spec.model for spec in pool.engines],
                holdout=settings.questions == "holdout",
                **predictors,
            )
            names = [spec.name for spec in pool.engines]
            events = tuple(event for event in settings.events if event.engine in names)
            result.append(_inputs(path, name, pool, models, workload, events))
    for of_pool in result:
        # Complains now of what would else stop runs after others are done: one program suffices.
        one_program = functools.partial(recorded, times_ms=[0.0])
        simulate(Cell(of_pool, RoundRobin(), None, one_program), seed=0)
    return result


def _predictors(settings: SweepSettings, ablation: AblationSettings | None) -> dict[str, Any]:
    """Those arguments of ``workload_from_traces`` that predict, with what ``ablation`` replaces.

    None where no policy goes by it.
    """
    policies = list(itertools.chain(*settings.policies))
    given_router, given_length = settings.router, settings.length
    if ablation is not None:
        given_router = ablation.router or given_router
        given_length = ablation.length or given_length
    router: Router | Oracle | None = None
    if given_router is not None and any(policy.needs_confidence for policy in policies):
        router = ORACLE if given_router == ORACLE else load_router(given_router)
    length = stage_length = None
    if any(policy.needs_lengths for policy in policies):
        length = _length_model(given_length, "remaining")
    if any(policy.needs_stage_lengths for policy in policies):
        stage_length = _length_model(settings.stage_length, "stage")
    ranker = None
    if settings.ranker is not None and any(policy.needs_ranks for policy in policies):
        ranker = Ranker.load(settings.ranker)
    return {"router": router, "length": length, "stage_length": stage_length, "ranker": ranker}


def _length_model(
    given: Literal["oracle"] | Path | None, target: Literal["remaining", "stage"]
) -> LengthPredictor | Oracle | None:
    if given is None or given == ORACLE:
        return given
    return LengthPredictor.load(given, target)


def _check_names(settings: SweepSettings, pools: Mapping[str, Pool]) -> None:
    model_of: dict[str, tuple[str, str]] = {}
    for path, pool in pools.items():
        for spec in pool.engines:
            model, first = model_of.setdefault(spec.name, (spec.model, path))
            if model != spec.model:
                raise ConfigError(
                    f"Engine '{spec.name}' serves '{model}' in {first}, but '{spec.model}' in"
                    f" {path}: give different engines different names."
                )
    for name in settings.latency:
        if name not in model_of:
            raise ConfigError(f"latency names '{name}', which is in none of the pools.")
    for event in settings.events:
        if event.engine not in model_of:
            raise ConfigError(f"events names '{event.engine}', which is in none of the pools.")
    for name in sorted(model_of.keys() - settings.latency.keys()):
        raise ConfigError(f"latency names no coefficient file for engine '{name}': calibrate it.")


def _inputs(
    path: str,
    predictors: str,
    pool: Pool,
    models: Mapping[str, StepTimeModel],
    workload: Workload,
    events: tuple[EngineEvent, ...],
) -> Inputs:
    of_pool = {spec.name: models[spec.name] for spec in pool.engines}
    plain = {
        name: asdict(model) | {"engine": model.engine.model_dump()}
        for name, model in of_pool.items()
    }
    plain_events = [event.model_dump() for event in events]
    digest = _digest(pool.model_dump(), plain, asdict(workload), plain_events)
    return Inputs(path, predictors, pool, of_pool, workload, events, digest)


def _draws(settings: ArrivalSettings) -> Iterator[tuple[float | None, Callable[..., Arrivals]]]:
    if isinstance(settings, RecordedSettings):
        times_ms = _recorded_times(settings)
        if settings.rates_per_s is None:
            yield None, functools.partial(recorded, times_ms=times_ms)
        for rate in settings.rates_per_s or ():
            yield rate, functools.partial(recorded, times_ms=rescaled(times_ms, rate))
        return
    if isinstance(settings, ClosedLoopSettings):
        yield None, functools.partial(closed_loop, **settings.model_dump(exclude={"kind"}))
        return
    draws: Mapping[str, Callable[..., Arrivals]] = {
        "poisson": poisson,
        "deterministic": deterministic,
        "mmpp": mmpp,
    }
    options = settings.model_dump(exclude={"kind", "rates_per_s"})
    for rate in settings.rates_per_s:
        yield rate, functools.partial(draws[settings.kind], rate_per_s=rate, **options)


def _recorded_times(settings: RecordedSettings) -> npt.NDArray[np.float64]:
    if settings.file is None:
        times_ms = np.array(settings.times_ms, dtype=np.float64)
    else:
        times_ms = read_arrival_times(settings.file)
    wanted = times_ms.size if settings.programs is None else settings.programs
    if wanted > times_ms.size:
        raise ConfigError(
            f"arrivals.programs is {wanted}, but only {times_ms.size} arrivals were recorded."
        )
    return times_ms[:wanted]


def _digest(*values: Any) -> str:
    return str(joblib.hash(values, hash_name="sha1"))


@functools.cache
def _code() -> str:
    package = Path(chimera_train.__file__).parent
    digest = hashlib.sha256()
    for layer in ("predict", "scheduling", "simulate"):
        for source in sorted((package / layer).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()

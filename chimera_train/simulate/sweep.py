"""Running a grid of simulations and summing each cell up over its seeds."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import pandas as pd

from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import Pool, load_pool
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.router import OnnxRouter
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.simulate.arrivals import Arrivals, poisson, recorded
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.metrics import run_metrics, summarise
from chimera_train.simulate.outcome import Simulation
from chimera_train.simulate.settings import PoissonSettings, SweepSettings
from chimera_train.simulate.sharing import sharing_curves
from chimera_train.simulate.workload import Workload, workload_from_traces
from chimera_train.traces.store import load_traces

__all__ = ["SweepResult", "run_cell", "sweep"]

# A warning about every step that is a little longer than any profiled would hide the others.
_TOLERATED_EXTRAPOLATION = 0.01


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found.

    Attributes:
        cells: one entry for each pool, rate and policy: ``pool`` (path), ``policy`` (settings),
            ``rate_per_s`` (None for recorded arrivals), ``programs``, ``seeds``, the figures of
            ``metrics.FIGURES`` and ``PER_ENGINE``, and ``ci``.
        runs: one row for each cell and seed: ``cell`` (index), ``seed`` and the figures.
        warnings: what the user should know about how far the figures hold.
    """

    cells: list[dict[str, Any]]
    runs: pd.DataFrame
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class _Inputs:
    path: str
    pool: Pool
    models: dict[str, StepTimeModel]
    workload: Workload


@dataclass(frozen=True, slots=True)
class _Cell:
    inputs: _Inputs
    rate_per_s: float | None
    policy: PolicySettings
    draw: Callable[..., Arrivals]  # (workload, seed=)


def sweep(
    settings: SweepSettings, on_progress: Callable[[int, int], None] | None = None
) -> SweepResult:
    """Simulate every cell with every seed, in ``settings.n_jobs`` processes.

    Everything is loaded and checked before the first simulation. ``on_progress`` is told how many
    runs of how many are done.

    Raises:
        ConfigError: a pool or a coefficient file is missing or superfluous.
        DataError: traces, predictors, coefficients or sharing curves do not cover the pools.
    """
    inputs = _load(settings)
    cells = list(_cells(settings, inputs))
    tasks = list(itertools.product(range(len(cells)), range(settings.seeds)))
    results = joblib.Parallel(n_jobs=settings.n_jobs, return_as="generator")(
        joblib.delayed(_metrics)(cells[cell], seed) for cell, seed in tasks
    )
    runs: list[list[dict[str, Any]]] = [[] for _ in cells]
    for done, ((cell, _), metrics) in enumerate(zip(tasks, results, strict=True), start=1):
        runs[cell].append(metrics)
        if on_progress is not None:
            on_progress(done, len(tasks))
    return _result(settings, inputs, cells, runs)


def run_cell(settings: SweepSettings) -> tuple[SweepResult, pd.DataFrame]:
    """Simulate a grid that has one cell; also ``Simulation.programs`` with a column ``seed``.

    Raises:
        ConfigError: the grid has several cells, or as ``sweep``.
        DataError: as ``sweep``.
    """
    inputs = _load(settings)
    cells = list(_cells(settings, inputs))
    if len(cells) != 1:
        raise ConfigError(
            f"The configuration describes {len(cells)} cells: give one pool, one policy and one"
            " rate, or use 'simulate sweep'."
        )
    simulations = [_simulate(cells[0], seed) for seed in range(settings.seeds)]
    programs = pd.concat(
        [simulation.programs.assign(seed=seed) for seed, simulation in enumerate(simulations)],
        ignore_index=True,
    )
    metrics = [run_metrics(simulation) for simulation in simulations]
    return _result(settings, inputs, cells, [metrics]), programs


def _load(settings: SweepSettings) -> list[_Inputs]:
    pools = [load_pool(path) for path in settings.pools]
    engines = {spec.name for pool in pools for spec in pool.engines}
    for name in settings.latency:
        if name not in engines:
            raise ConfigError(f"latency names '{name}', which is in none of the pools.")
    for name in sorted(engines - settings.latency.keys()):
        raise ConfigError(f"latency names no coefficient file for engine '{name}': calibrate it.")
    models = {name: StepTimeModel.load(path) for name, path in settings.latency.items()}
    traces = load_traces(settings.traces)
    policies = list(itertools.chain(*settings.policies))
    router: OnnxRouter | None = None
    length: LengthPredictor | None = None
    if settings.router is not None and any(policy.needs_confidence for policy in policies):
        router = OnnxRouter.load(settings.router)
    if settings.length is not None and any(policy.needs_lengths for policy in policies):
        length = LengthPredictor.load(settings.length)
    result = []
    for path, pool in zip(settings.pools, pools, strict=True):
        for spec in pool.engines:
            fitted = models[spec.name].engine.model
            if fitted != spec.model:
                raise DataError(
                    f"{settings.latency[spec.name]} was calibrated on '{fitted}', but engine"
                    f" '{spec.name}' serves '{spec.model}': calibrate that."
                )
        sharing_curves(pool, models)  # complains now, not in the first simulation
        workload = workload_from_traces(
            traces,
            [spec.model for spec in pool.engines],
            holdout=settings.questions == "holdout",
            router=router,
            length=length,
        )
        result.append(_Inputs(str(path), pool, models, workload))
    return result


def _cells(settings: SweepSettings, inputs: list[_Inputs]) -> Iterator[_Cell]:
    arrivals = settings.arrivals
    draws: list[tuple[float | None, Callable[..., Arrivals]]]
    if isinstance(arrivals, PoissonSettings):
        draws = [
            (rate, functools.partial(poisson, rate_per_s=rate, programs=arrivals.programs))
            for rate in arrivals.rates_per_s
        ]
    else:
        draws = [(None, functools.partial(recorded, times_ms=arrivals.times_ms))]
    policies = list(itertools.chain(*settings.policies))
    for pool, (rate, draw), policy in itertools.product(inputs, draws, policies):
        yield _Cell(pool, rate, policy, draw)


def _simulate(cell: _Cell, seed: int) -> Simulation:
    inputs = cell.inputs
    return simulate_once(
        inputs.pool,
        inputs.models,
        inputs.workload,
        cell.policy,
        cell.draw(inputs.workload, seed=seed),
    )


def _metrics(cell: _Cell, seed: int) -> dict[str, Any]:
    return run_metrics(_simulate(cell, seed))


def _result(
    settings: SweepSettings,
    inputs: list[_Inputs],
    cells: list[_Cell],
    runs: list[list[dict[str, Any]]],
) -> SweepResult:
    arrivals = settings.arrivals
    n_programs = (
        arrivals.programs if isinstance(arrivals, PoissonSettings) else len(arrivals.times_ms)
    )
    summaries = [
        {
            "pool": cell.inputs.path,
            "policy": cell.policy.model_dump(),
            "rate_per_s": cell.rate_per_s,
            "programs": n_programs,
            "seeds": settings.seeds,
            **summarise(metrics),
        }
        for cell, metrics in zip(cells, runs, strict=True)
    ]
    rows = [
        {"cell": index, "seed": seed, **metrics}
        for index, of_cell in enumerate(runs)
        for seed, metrics in enumerate(of_cell)
    ]
    warnings = [warning for one in inputs for warning in _warnings(one)]
    warnings += _extrapolation_warnings(summaries)
    return SweepResult(summaries, pd.json_normalize(rows), warnings)


def _warnings(inputs: _Inputs) -> Iterator[str]:
    engines = inputs.pool.engines
    for what, flag in (
        ("prefix caching", "enable_prefix_caching"),
        ("asynchronous scheduling", "async_scheduling"),
    ):
        names = [spec.name for spec in engines if getattr(inputs.models[spec.name].engine, flag)]
        if names:
            yield f"{inputs.path}: {what} is not simulated, but {', '.join(names)} had it on."


def _extrapolation_warnings(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    worst: dict[str, float] = {}
    for cell in cells:
        for engine, share in cell["extrapolated_share"].items():
            worst[engine] = max(worst.get(engine, 0.0), share)
    for engine, share in worst.items():
        if share > _TOLERATED_EXTRAPOLATION:
            yield (
                f"up to {share:.0%} of the steps of '{engine}' are outside what its step-time model"
                " was fitted on: profile it over larger batches or longer contexts."
            )

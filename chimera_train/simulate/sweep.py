"""Running a grid of simulations and summing each cell up over its seeds."""

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from chimera_train.errors import ConfigError
from chimera_train.simulate.backends import Task, run_locally
from chimera_train.simulate.frontier import compare
from chimera_train.simulate.grid import Cell, Inputs, load_grid, run_key, simulate
from chimera_train.simulate.metrics import run_metrics, summarise
from chimera_train.simulate.outcome import Simulation
from chimera_train.simulate.run_store import RunStore, open_run_store
from chimera_train.simulate.settings import SweepSettings

__all__ = ["SweepResult", "caveats", "run_cell", "run_tasks", "sweep"]

# A warning about every step that is a little longer than any profiled would hide the others.
_TOLERATED_EXTRAPOLATION = 0.01


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found.

    Attributes:
        cells: one entry for each pool, set of predictors, rate and policy: ``pool`` (path),
            ``predictors`` (``plain``, or the name of an ablation), ``policy`` (settings),
            ``rate_per_s`` (None where none was given), ``programs``, ``seeds``, the figures of
            ``metrics.FIGURES`` and ``PER_ENGINE``, and ``ci``.
        frontier: each policy against each baseline (``frontier.compare``).
        runs: one row for each cell and seed: ``cell`` (index), ``pool``, ``predictors``,
            ``rate_per_s``, ``policy`` (settings as JSON), ``seed`` and the figures.
        resumed: how many of the runs had been stored before.
        warnings: what the user should know about how far the figures hold.
    """

    cells: list[dict[str, Any]]
    frontier: list[dict[str, Any]]
    runs: pd.DataFrame
    resumed: int
    warnings: list[str]


def sweep(
    settings: SweepSettings,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    keep_in: Path | None = None,
    run: Callable[..., Iterator[tuple[Task, dict[str, Any]]]] | None = None,
) -> SweepResult:
    """Simulate every cell with every seed.

    Everything is loaded and checked before the first simulation.

    Args:
        settings: the grid.
        on_progress: is told how many runs of how many are done.
        keep_in: directory in which every run is stored once it is finished; those that are there
            already, with the same inputs, are not run again.
        run: one of ``backends``, given all but what it computes; by default ``settings.n_jobs``
            processes.

    Raises:
        ConfigError, DataError: as ``grid.load_grid``, or ``keep_in`` as ``open_run_store``.
        ChimeraError: as ``run``.
    """
    run = run or functools.partial(run_locally, n_jobs=settings.n_jobs)
    cells = load_grid(settings)
    tasks = list(itertools.product(range(len(cells)), range(settings.seeds)))
    with nullcontext() if keep_in is None else open_run_store(keep_in) as store:
        figures, resumed = run_tasks(cells, tasks, run, store=store, on_progress=on_progress)
    return _result(cells, [figures[task] for task in tasks], resumed)


def run_tasks(
    cells: Sequence[Cell],
    tasks: Sequence[Task],
    run: Callable[..., Iterator[tuple[Task, dict[str, Any]]]],
    *,
    store: RunStore | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[Task, Mapping[str, Any]], int]:
    """The figures of every task (i, seed), a run of ``cells[i]``, and how many ``store`` had."""
    tell = on_progress or (lambda *_: None)
    keys: dict[Task, str] = {}
    figures: dict[Task, Mapping[str, Any]] = {}
    if store is not None:
        keys = {(cell, seed): run_key(cells[cell], seed) for cell, seed in tasks}
        figures = {task: store.figures[k] for task, k in keys.items() if k in store.figures}
    resumed = len(figures)
    tell(resumed, len(tasks))
    for task, finished in run(_run, cells, [task for task in tasks if task not in figures]):
        if store is not None:
            store.add(keys[task], finished)
        figures[task] = finished
        tell(len(figures), len(tasks))
    return figures, resumed


def run_cell(settings: SweepSettings) -> tuple[SweepResult, pd.DataFrame]:
    """Simulate a grid that has one cell; also ``Simulation.programs`` with a column ``seed``.

    Raises:
        ConfigError: the grid has several cells, or as ``sweep``.
        DataError: as ``sweep``.
    """
    cells = load_grid(settings)
    if len(cells) != 1:
        raise ConfigError(
            f"The configuration describes {len(cells)} cells: give one pool, one policy and one"
            " rate, or use 'simulate sweep'."
        )
    simulations = [simulate(cells[0], seed) for seed in range(settings.seeds)]
    programs = pd.concat(
        [simulation.programs.assign(seed=seed) for seed, simulation in enumerate(simulations)],
        ignore_index=True,
    )
    figures = [_figures(cells[0], simulation) for simulation in simulations]
    return _result(cells, figures, 0), programs


def _run(cell: Cell, seed: int) -> dict[str, Any]:
    return _figures(cell, simulate(cell, seed))


def _figures(cell: Cell, simulation: Simulation) -> dict[str, Any]:
    return {"programs": len(simulation.programs), **run_metrics(simulation, cell.on_time)}


def _result(
    cells: Sequence[Cell], figures: Sequence[Mapping[str, Any]], resumed: int
) -> SweepResult:
    """``figures`` are those of every seed of the first cell, then of the next one's, and so on."""
    seeds = len(figures) // len(cells)
    of_cells = [figures[i : i + seeds] for i in range(0, len(figures), seeds)]
    identity = [
        {
            "pool": cell.inputs.path,
            "predictors": cell.inputs.predictors,
            "policy": cell.policy.model_dump(),
            "rate_per_s": cell.rate_per_s,
        }
        for cell in cells
    ]
    summaries = [
        {**names, "programs": runs[0]["programs"], "seeds": seeds, **summarise(runs)}
        for names, runs in zip(identity, of_cells, strict=True)
    ]
    runs = pd.json_normalize(
        [
            {"cell": cell, **names, "policy": json.dumps(names["policy"]), "seed": seed, **run}
            for cell, (names, runs) in enumerate(zip(identity, of_cells, strict=True))
            for seed, run in enumerate(runs)
        ]
    )
    inputs = {cell.inputs.path: cell.inputs for cell in cells}
    warnings = caveats(inputs.values(), summaries)
    return SweepResult(summaries, compare(runs), runs, resumed, warnings)


def caveats(inputs: Iterable[Inputs], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the user should know about how far the figures of ``cells`` hold."""
    unused_caches = [warning for one in inputs for warning in _warnings(one)]
    return [*unused_caches, *_extrapolation_warnings(cells)]


def _warnings(inputs: Inputs) -> Iterator[str]:
    names = [name for name, model in inputs.models.items() if model.engine.enable_prefix_caching]
    if names:
        yield (
            f"{inputs.path}: {', '.join(names)} have a prefix cache, but prompts are taken to have"
            " nothing in common."
        )


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

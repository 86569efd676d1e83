"""The policy and the settings that serve an objective best, judged on seeds of their own.

Settings are tried on the search seeds; every policy meets the same programs under a seed. What
looks best there has also been lucky, above all where a bound decides. So the answer is judged on
validation seeds, and if it is out of bounds on them, what is second is judged, with the bounds
tightened by as much as the first was worse than it had looked.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from chimera_train.errors import ConfigError
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.simulate.backends import run_locally
from chimera_train.simulate.grid import Cell, load_grid
from chimera_train.simulate.metrics import summarise, t_interval
from chimera_train.simulate.objective import ObjectiveSettings
from chimera_train.simulate.run_store import RunStore, open_run_store
from chimera_train.simulate.search_space import SearchSpace, search_space
from chimera_train.simulate.sweep import caveats, run_tasks

__all__ = ["Judged", "TuneResult", "tune"]

# So many times the trials may be suggestions, many of which have been tried before.
_PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """A policy with its figures.

    Attributes:
        policy: its settings.
        runs: the figures under each seed.
        figures: their means, and ``ci`` (``metrics.summarise``).
    """

    policy: PolicySettings
    runs: Sequence[Mapping[str, Any]]
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What ``tune`` found.

    Attributes:
        policy: the answer.
        feasible: whether it is within all bounds on the validation seeds; if not, it is the least
            far outside of those that were judged there.
        validated: the answer on the validation seeds.
        baselines: what it is compared with, on the same seeds.
        against: one entry for each baseline: ``difference`` of the answer's mean to its mean by
            figure, and ``ci``, over seeds.
        tried: every policy that was tried, on the search seeds, in order.
        frontier: those of them that no other surpasses in the figure to improve without being worse
            in a bounded one; the best first.
        resumed: how many runs had been stored before.
        warnings: what the user should know about how far the figures hold.
    """

    policy: PolicySettings
    feasible: bool
    validated: Judged
    baselines: list[Judged]
    against: list[dict[str, Any]]
    tried: list[Judged]
    frontier: list[Judged]
    resumed: int
    warnings: list[str]


def tune(
    objective: ObjectiveSettings,
    directory: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> TuneResult:
    """Look for the policy that serves ``objective`` best; the same one every time.

    Everything is loaded and checked before the first simulation. Each run is stored in
    ``directory`` once it is finished, so that a search that was stopped goes on where it was.

    Args:
        objective: what is wanted.
        directory: where the runs are stored.
        on_progress: is told how many trials and validations of how many are done.

    Raises:
        ConfigError: as ``search_space``, ``grid.load_grid`` or ``open_run_store``, or a figure of
            the objective has no value in these simulations.
        DataError: as ``grid.load_grid`` or ``open_run_store``.
    """
    space, baselines = search_space(objective)
    cells = load_grid(objective.sweep(baselines))
    tell = on_progress or (lambda *_: None)
    total = objective.trials + 1 + len(baselines)
    with open_run_store(directory) as store:
        bench = _Bench(objective, cells[0], store)
        compared = [bench.search(policy) for policy in baselines]
        tried = _search(objective, space, bench, compared, lambda number: tell(number, total))
        ours = [one.policy for one in tried if space.holds(one.policy)]
        judged = []
        for done, policy in enumerate(baselines):
            tell(objective.trials + done, total)
            judged.append(bench.validate(policy))
        answer = _validate(objective, bench, ours, baselines)
        tell(total, total)
    return TuneResult(
        policy=answer.policy,
        feasible=objective.violation(answer.figures) == 0.0,
        validated=answer,
        baselines=judged,
        against=[_difference(answer, other, objective.figures) for other in judged],
        tried=tried,
        frontier=_frontier(objective, tried),
        resumed=bench.resumed,
        warnings=caveats([cells[0].inputs], [one.figures for one in [answer, *tried]]),
    )


class _Bench:
    """Runs policies on the search and on the validation seeds, none twice."""

    def __init__(self, objective: ObjectiveSettings, cell: Cell, store: RunStore) -> None:
        self.resumed = 0
        self._objective = objective
        self._cell = cell
        self._store = store
        self._judged: dict[tuple[PolicySettings, range], Judged] = {}

    def search(self, policy: PolicySettings) -> Judged:
        return self._judge(policy, range(self._objective.search_seeds))

    def validate(self, policy: PolicySettings) -> Judged:
        first = self._objective.search_seeds
        return self._judge(policy, range(first, first + self._objective.validation_seeds))

    def _judge(self, policy: PolicySettings, seeds: range) -> Judged:
        if (policy, seeds) not in self._judged:
            self._judged[policy, seeds] = self._run(policy, seeds)
        return self._judged[policy, seeds]

    def _run(self, policy: PolicySettings, seeds: range) -> Judged:
        tasks = [(0, seed) for seed in seeds]
        figures, resumed = run_tasks(
            [replace(self._cell, policy=policy)],
            tasks,
            lambda *what: run_locally(*what, n_jobs=self._objective.n_jobs),
            store=self._store,
        )
        self.resumed += resumed
        runs = [figures[task] for task in tasks]
        judged = Judged(policy, runs, summarise(runs))
        for name in self._objective.figures:
            value = judged.figures[name]
            if value is None or not math.isfinite(value):
                raise ConfigError(f"'{name}' has no value in these simulations: choose another.")
        return judged


def _search(
    objective: ObjectiveSettings,
    space: SearchSpace,
    bench: _Bench,
    baselines: Sequence[Judged],
    on_trial: Callable[[int], None],
) -> list[Judged]:
    """The baselines and what Optuna tried, each once."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        # The settings of one kind are sampled together; Optuna calls that option experimental.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=objective.seed, multivariate=True, group=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for one in baselines:
        if space.holds(one.policy):
            study.enqueue_trial(space.parameters(one.policy))
    tried = {one.policy: one for one in baselines}
    asked = 0
    while asked < _PATIENCE * objective.trials and len(tried) < objective.trials:
        asked += 1
        on_trial(len(tried))
        trial = study.ask()
        judged = bench.search(space.suggest(trial))
        for name, excess in objective.excesses(judged.figures).items():
            trial.set_constraint(name, excess)
        study.tell(trial, objective.gain(judged.figures))
        tried[judged.policy] = judged
    return list(tried.values())


def _validate(
    objective: ObjectiveSettings,
    bench: _Bench,
    candidates: Sequence[PolicySettings],
    baselines: Sequence[PolicySettings],
) -> Judged:
    """The best that is within the bounds on the validation seeds, or the least far outside."""

    def rank(one: Judged) -> tuple[float, float]:
        return objective.violation(one.figures), -objective.gain(one.figures)

    tightened = dict.fromkeys(objective.subject_to, 0.0)
    judged: list[Judged] = []
    for looked in sorted(map(bench.search, candidates), key=rank):
        excesses = objective.excesses(looked.figures)
        if judged and any(excesses[name] + tightened[name] > 0.0 for name in excesses):
            continue
        found = bench.validate(looked.policy)
        if objective.violation(found.figures) == 0.0:
            return found
        judged.append(found)
        for name, excess in objective.excesses(found.figures).items():
            if excess > 0.0:
                tightened[name] = max(tightened[name], excess - excesses[name])
    # A baseline, which is judged anyway, may be within them by another way than all these.
    judged += [bench.validate(policy) for policy in baselines if policy in candidates]
    return min(judged, key=rank)


def _frontier(objective: ObjectiveSettings, tried: Sequence[Judged]) -> list[Judged]:
    def goodness(one: Judged) -> list[float]:
        excesses = objective.excesses(one.figures)
        return [objective.gain(one.figures), *(-excess for excess in excesses.values())]

    points = {tuple(goodness(one)): one for one in reversed(tried)}  # of equal ones the first
    best = [
        one
        for point, one in points.items()
        if not any(
            other != point and all(o >= p for o, p in zip(other, point, strict=True))
            for other in points
        )
    ]
    return sorted(best, key=lambda one: -objective.gain(one.figures))


def _difference(answer: Judged, other: Judged, names: Sequence[str]) -> dict[str, Any]:
    by_seed = {
        name: [a[name] - b[name] for a, b in zip(answer.runs, other.runs, strict=True)]
        for name in names
    }
    return {
        "difference": {name: answer.figures[name] - other.figures[name] for name in names},
        "ci": {name: t_interval(values) for name, values in by_seed.items()},
    }

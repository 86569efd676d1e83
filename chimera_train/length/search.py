"""A bounded search for settings that order unseen questions better than the given ones.

No setting is worth much here, and the best of many trials has also been lucky on the folds that it
is judged by. So the given settings stay unless others are better by more than the difference
between the two varies from fold to fold.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from chimera_train.config import Settings
from chimera_train.output import Output

__all__ = ["BOOSTED_RANGES", "FOREST_RANGES", "SearchResult", "Trial", "search"]

S = TypeVar("S", bound=Settings)

#: What is searched of ``LengthSettings`` where forests are fitted.
FOREST_RANGES: Mapping[str, BaseDistribution] = {
    "min_samples_leaf": IntDistribution(2, 40, log=True),
    "max_features": FloatDistribution(0.1, 1.0),
    "sketch_components": IntDistribution(4, 64, log=True),
    "max_samples": IntDistribution(1_000, 20_000, log=True),
}

#: What is searched of ``BoostedSettings``.
BOOSTED_RANGES: Mapping[str, BaseDistribution] = {
    "n_rounds": IntDistribution(50, 800, log=True),
    "max_leaves": IntDistribution(4, 128, log=True),
    "learning_rate": FloatDistribution(0.01, 0.2, log=True),
    "min_samples_leaf": IntDistribution(5, 80, log=True),
}

# So many times the trials may be suggestions, of which some have been tried before.
_PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Trial(Generic[S]):
    """Settings that were tried.

    Attributes:
        settings: these.
        distances: the Kendall distance on each fold.
        gain: mean by which the distance is less than that of the given settings.
        gain_spread: standard deviation of that over the folds; 0 of a single fold.
    """

    settings: S
    distances: tuple[float, ...]
    gain: float
    gain_spread: float

    @property
    def distance(self) -> float:
        """Mean over the folds."""
        return float(np.mean(self.distances))


@dataclass(frozen=True, slots=True)
class SearchResult(Generic[S]):
    """What ``search`` found.

    Attributes:
        best: the settings with the least distance of those whose gain exceeds its spread; the given
            ones where there are none.
        trials: everything that was tried, in order, the given settings first.
    """

    best: S
    trials: list[Trial[S]]


def search(
    base: S,
    ranges: Mapping[str, BaseDistribution],
    score: Callable[[S], Sequence[float]],
    *,
    trials: int,
    seed: int,
    output: Output,
) -> SearchResult[S]:
    """Try settings that differ from ``base`` in what ``ranges`` names; the same ones every time.

    Args:
        base: the given settings; they may lie outside of the ranges.
        ranges: field → what it may be, such as ``FOREST_RANGES``.
        score: the Kendall distance of settings on each fold, always the same folds.
        trials: how many settings are judged, the given ones included.
        seed: of the sampler (Tree-structured Parzen estimator).
        output: shows the progress.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    given = tuple(score(base))
    tried = {base: _trial(base, given, given)}
    _tell_base(study, base, ranges, tried[base].distance)
    with output.progress() as progress:
        line = progress.add_task("searching settings", total=trials, completed=1, note="")
        asked = 1
        while asked < _PATIENCE * trials and len(tried) < trials:
            asked += 1
            suggestion = study.ask(dict(ranges))
            settings = _changed(base, suggestion.params)
            if settings not in tried:
                tried[settings] = _trial(settings, tuple(score(settings)), given)
            study.tell(suggestion, tried[settings].distance)
            best = min(trial.distance for trial in tried.values())
            progress.update(line, completed=len(tried), note=f"{best:.4f}")
    better = [trial for trial in tried.values() if trial.gain > trial.gain_spread]
    best_trial = min(better, key=lambda trial: trial.distance, default=tried[base])
    return SearchResult(best_trial.settings, list(tried.values()))


def _trial(settings: S, distances: tuple[float, ...], given: tuple[float, ...]) -> Trial[S]:
    gains = np.subtract(given, distances)  # the folds are the same, so that their ease cancels out
    spread = float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
    return Trial(settings, distances, float(np.mean(gains)), spread)


def _changed(base: S, values: Mapping[str, Any]) -> S:
    # Three digits: nobody would write more into a parameter file.
    rounded = {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in values.items()
    }
    return type(base).model_validate(base.model_dump() | rounded)


def _tell_base(
    study: optuna.Study, base: Settings, ranges: Mapping[str, BaseDistribution], distance: float
) -> None:
    """Let the sampler know how the given settings do, if they lie in the ranges."""
    values = {name: getattr(base, name) for name in ranges}
    if all(of.low <= values[name] <= of.high for name, of in ranges.items()):  # type: ignore[attr-defined]
        study.add_trial(
            optuna.trial.create_trial(params=values, distributions=dict(ranges), value=distance)
        )

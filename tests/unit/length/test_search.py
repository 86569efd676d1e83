import math
from typing import Any

import numpy as np
import pytest
from optuna.distributions import BaseDistribution, IntDistribution

from chimera_train.length.boosted import BoostedSettings
from chimera_train.length.search import BOOSTED_RANGES, FOREST_RANGES, SearchResult, search
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output

BASE = BoostedSettings()
EASE = np.array([0.02, -0.01, 0.0, 0.01, -0.02])  # of the folds


def look(
    score: Any,
    base: BoostedSettings = BASE,
    ranges: Any = BOOSTED_RANGES,
    trials: int = 20,
    seed: int = 0,
) -> SearchResult[BoostedSettings]:
    return search(base, ranges, score, trials=trials, seed=seed, output=Output(quiet=True))


def bowl(settings: BoostedSettings) -> Any:
    """Best at a learning rate of 0.1."""
    return 0.1 + abs(math.log(settings.learning_rate / 0.1)) / 100 + EASE


def test_finds_what_is_better() -> None:
    found = look(bowl)
    assert found.trials[0].settings == BASE
    assert found.best == min(found.trials, key=lambda trial: trial.distance).settings
    assert bowl(found.best).mean() < bowl(BASE).mean() - 0.008
    assert found.best.learning_rate == pytest.approx(0.1, rel=0.5)


def test_is_the_same_every_time_and_within_the_budget_and_the_ranges() -> None:
    first, again, other = look(bowl), look(bowl), look(bowl, seed=1)
    assert first == again
    assert first != other
    assert len({trial.settings for trial in first.trials}) == len(first.trials) == 20
    for trial in first.trials:
        for name, allowed in BOOSTED_RANGES.items():
            assert allowed.low <= getattr(trial.settings, name) <= allowed.high  # type: ignore[attr-defined]


def test_gains_are_paired_over_the_folds() -> None:
    for trial in look(bowl, trials=3).trials:
        assert trial.distance == pytest.approx(bowl(trial.settings).mean())
        assert trial.gain == pytest.approx(bowl(BASE).mean() - trial.distance)
        assert trial.gain_spread == pytest.approx(0.0, abs=1e-12)  # that of the folds cancels out


def test_the_given_settings_stay_where_others_were_only_lucky() -> None:
    rng = np.random.default_rng(0)

    def lottery(settings: BoostedSettings) -> Any:
        return 0.2 + rng.normal(scale=0.01, size=5) * np.array([0, 0, 1, -1, 8])

    found = look(lottery, trials=30)
    assert min(trial.distance for trial in found.trials) < found.trials[0].distance
    assert found.best == BASE


def test_the_given_settings_stay_where_nothing_matters() -> None:
    found = look(lambda settings: [0.3] * 5)
    assert found.best == BASE
    assert found.trials[0].gain == found.trials[0].gain_spread == 0.0


def test_given_settings_may_lie_outside_of_the_ranges() -> None:
    odd = BoostedSettings(n_rounds=3, max_leaves=500)
    found = look(bowl, odd, trials=5)
    assert found.trials[0].settings == odd
    assert len(found.trials) == 5


def test_what_is_not_searched_stays() -> None:
    ranges = {"n_rounds": BOOSTED_RANGES["n_rounds"]}
    odd = BoostedSettings(learning_rate=0.5)
    found = look(bowl, odd, ranges, trials=6)
    assert {trial.settings.learning_rate for trial in found.trials} == {0.5}


def test_a_budget_larger_than_what_there_is_ends() -> None:
    asked = []

    def score(settings: BoostedSettings) -> list[float]:
        asked.append(settings)
        return [0.3]

    found = look(score, ranges={"n_rounds": IntDistribution(199, 201)}, trials=10)
    assert 2 <= len(found.trials) <= 3
    assert len(asked) == len(found.trials)  # none is scored twice


def test_a_budget_of_one_is_the_given_settings() -> None:
    assert [trial.settings for trial in look(bowl, trials=1).trials] == [BASE]


@pytest.mark.parametrize("edge", ["low", "high"])
def test_every_boosted_setting_of_the_ranges_is_allowed(edge: str) -> None:
    BoostedSettings(**_edges(BOOSTED_RANGES, edge))


@pytest.mark.parametrize("edge", ["low", "high"])
def test_every_forest_setting_of_the_ranges_is_allowed(edge: str) -> None:
    LengthSettings(**_edges(FOREST_RANGES, edge))


def _edges(ranges: Any, edge: str) -> dict[str, Any]:
    allowed: dict[str, BaseDistribution] = dict(ranges)
    return {name: getattr(one, edge) for name, one in allowed.items()}

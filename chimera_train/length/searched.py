"""Which settings ``search`` tries, and what it judges them by."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from chimera_train.length.evaluate import Fit, predict_unseen
from chimera_train.length.judge import column_distance
from chimera_train.length.search import BOOSTED_RANGES, FOREST_RANGES, SearchResult, search
from chimera_train.length.settings import BoostedSettings, LengthSettings
from chimera_train.output import Output
from chimera_train.traces.split import HOLDOUT_FOLD

__all__ = ["searched"]


def searched(
    rows: pd.DataFrame, settings: LengthSettings, output: Output, fit: Fit, trials: int
) -> tuple[LengthSettings, dict[str, Any]]:
    """The best of so many settings, by grouped cross-validation, and the table of all.

    The holdout fold takes no part. The given settings are the first, and stay unless others are
    better by more than the folds differ.
    """
    rows = rows[rows["fold"] != HOLDOUT_FOLD]

    def distances(tried: LengthSettings) -> list[float]:
        judged = predict_unseen(rows, tried, output, fit)
        return [column_distance(own, "predicted") for _, own in judged.groupby("fold")]

    if settings.estimator == "forest":
        found = search(
            settings, FOREST_RANGES, distances, trials=trials, seed=settings.seed, output=output
        )
        return found.best, _told(found, FOREST_RANGES)

    def with_boosted(tried: BoostedSettings) -> LengthSettings:
        return settings.model_copy(update={"boosted": tried})

    of_boosted = search(
        settings.boosted,
        BOOSTED_RANGES,
        lambda tried: distances(with_boosted(tried)),
        trials=trials,
        seed=settings.seed,
        output=output,
    )
    return with_boosted(of_boosted.best), _told(of_boosted, BOOSTED_RANGES)


def _told(found: SearchResult[Any], ranges: Mapping[str, Any]) -> dict[str, Any]:
    trials = [
        {
            **trial.settings.model_dump(include=set(ranges)),
            "kendall_distance": trial.distance,
            "gain": trial.gain,
            "gain_spread": trial.gain_spread,
        }
        for trial in found.trials
    ]
    return {"trials": trials, "changed": found.best != found.trials[0].settings}

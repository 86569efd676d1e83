"""How many programs are enough: the distance on unseen questions by the number to learn from."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.length.estimators import fit_estimators
from chimera_train.length.evaluate import MIN_QUESTIONS, Fit, judged_rows, require_enough
from chimera_train.length.judge import column_distance
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output

__all__ = ["learning_curve"]

_DRAWS = 3
_ENOUGH = 0.005
_COLUMNS = {
    "kendall_distance": "predicted",
    "prompt_length": "prompt_length",
    "stage_median": "stage_median",
}


def learning_curve(
    rows: pd.DataFrame,
    settings: LengthSettings,
    output: Output,
    fit: Fit = fit_estimators,
) -> dict[str, Any]:
    """Distances after learning from all training questions, from half of them, a quarter and so on.

    Each of three draws holds out another fold and puts the questions of the others in an order of
    its own, from which the training sets are taken: the smaller are parts of the larger. With a
    question come all its programs. The smallest set has at least 25 questions and every model.

    The arguments are those of ``evaluate.cross_validate``.

    Returns:
        ``points``, from the smallest set on, each with ``questions`` and ``programs`` (means over
        the draws), ``kendall_distance``, the baselines ``prompt_length`` and ``stage_median``
        (medians of the same training set), and ``draws`` (the distance of each draw); and
        ``enough_programs``: those of the smallest set within 0.005 of the largest. None if only
        the largest is, so that even more programs may help.

    Raises:
        DataError: there are too few questions (``require_enough``).
    """
    require_enough(rows)
    draws = [_draw(rows, fold, settings.seed) for fold in range(_DRAWS)]
    fewest = min(len(questions) for _, questions in draws)
    n_sets = 1 + max(0, int(math.log2(fewest / MIN_QUESTIONS)))
    points: list[dict[str, Any]] = []
    with output.progress() as progress:
        task = progress.add_task("learning curve", total=n_sets, note="")
        for halvings in range(n_sets):
            sets = [
                (unseen, rows[rows["question_id"].isin(questions[: len(questions) >> halvings])])
                for unseen, questions in draws
            ]
            if any(set(unseen["model"]) - set(training["model"]) for unseen, training in sets):
                break
            points.insert(0, _point(sets, settings, fit))
            progress.advance(task)
    return {"points": points, "enough_programs": _enough(points)}


def _draw(rows: pd.DataFrame, fold: int, seed: int) -> tuple[pd.DataFrame, list[str]]:
    """The rows that stay unseen, and the other questions in random order."""
    unseen = rows["fold"] == fold
    questions = np.sort(rows.loc[~unseen, "question_id"].unique())
    return rows[unseen], np.random.default_rng((seed, fold)).permutation(questions).tolist()


def _point(
    sets: Sequence[tuple[pd.DataFrame, pd.DataFrame]],
    settings: LengthSettings,
    fit: Fit,
) -> dict[str, Any]:
    distances: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    for unseen, training in sets:
        predictor = fit(training, settings).predictor
        judged = judged_rows(unseen, training, predictor, settings.seed)
        for name, column in _COLUMNS.items():
            distances[name].append(column_distance(judged, column))
    return {
        "questions": float(np.mean([training["question_id"].nunique() for _, training in sets])),
        "programs": float(np.mean([training["program_id"].nunique() for _, training in sets])),
        **{name: float(np.mean(of_draws)) for name, of_draws in distances.items()},
        "draws": distances["kendall_distance"],
    }


def _enough(points: Sequence[dict[str, Any]]) -> float | None:
    *smaller, largest = points
    for point in smaller:
        if point["kendall_distance"] <= largest["kendall_distance"] + _ENOUGH:
            return float(point["programs"])
    return None

"""Judging the forests on questions that they have not seen, beside what a scheduler would use else.

Five folds by question: each fold is predicted by forests fitted on the other four, evaluated by the
code that the runtime uses.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.length.forests import FittedLength, fit_forests
from chimera_train.length.metrics import bootstrap_interval, coverage, fold_distance, pinball_loss
from chimera_train.length.rows import stage_requests
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.predict.features import StageRequest
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.ranker import Ranker
from chimera_train.traces.split import N_FOLDS

__all__ = ["BASELINES", "MIN_QUESTIONS", "QUANTILES", "cross_validate", "judge", "require_enough"]

QUANTILES = (0.1, 0.5, 0.9)
BASELINES = ("fcfs", "prompt_length", "stage_mean")
MIN_QUESTIONS = 25


def require_enough(rows: pd.DataFrame) -> None:
    """Check that every model can be fitted and judged on every fold.

    Raises:
        DataError: a model has too few questions, or none in one of the folds.
    """
    for model, group in rows.groupby("model"):
        questions = group["question_id"].nunique()
        if questions < MIN_QUESTIONS or group["fold"].nunique() < N_FOLDS:
            raise DataError(
                f"Model '{model}' has completed programs for {questions} questions in"
                f" {group['fold'].nunique()} of {N_FOLDS} folds: at least {MIN_QUESTIONS} questions"
                " and some in every fold are needed, so collect more traces."
            )


def cross_validate(
    rows: pd.DataFrame,
    settings: LengthSettings,
    output: Output,
    fit: Callable[[pd.DataFrame, LengthSettings], FittedLength] = fit_forests,
) -> dict[str, Any]:
    """The figures of ``judge`` for all ``rows`` (``rows.stage_rows``), each predicted unseen.

    ``fit`` is ``fit_forests`` or ``rank.fit_scorers``.

    Raises:
        DataError: there are too few questions (``require_enough``).
    """
    require_enough(rows)
    judged = []
    with output.progress() as progress:
        task = progress.add_task("cross-validating", total=N_FOLDS, note="")
        for fold in range(N_FOLDS):
            unseen = rows["fold"] == fold
            predictor = fit(rows[~unseen], settings).predictor
            judged.append(_predictions(rows[unseen], rows[~unseen], predictor, settings.seed))
            progress.advance(task)
    return judge(pd.concat(judged, ignore_index=True), settings.seed)


def judge(judged: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Every figure of predicted rows, as the JSON result of ``fit length``.

    ``kendall_distance`` (of ŷ, or the score) and ``baselines`` are means over the folds of the
    distance within a fold; ``overall`` pools models and stages, ``per_stage`` pools stages of one
    id. ``coverage`` and ``pinball`` (tokens) are means over rows, by quantile; a ranker has none.

    Args:
        judged: rows with a column more for each of ``BASELINES``, for ``predicted`` (ŷ or a score)
            and, of forests, for each of ``QUANTILES`` (as text).
        seed: of the bootstrap interval.
    """
    interval = bootstrap_interval(
        judged["target_tokens"].to_numpy(dtype=np.float64),
        judged["predicted"].to_numpy(),
        judged["fold"].to_numpy(),
        judged["program_id"].to_numpy(),
        np.random.default_rng(seed),
    )
    figures = {
        "n_programs": int(judged["program_id"].nunique()),
        "kendall_distance": {
            **_breakdown(judged, lambda rows: _distance(rows, "predicted")),
            "ci": list(interval),
        },
        "baselines": {name: _distance(judged, name) for name in BASELINES},
        "baselines_per_model": {
            str(model): {name: _distance(rows, name) for name in BASELINES}
            for model, rows in judged.groupby("model")
        },
    }
    for name, figure in (("coverage", _coverage), ("pinball", _pinball)):
        of_quantiles = {
            str(q): _breakdown(judged, partial(figure, q)) for q in QUANTILES if str(q) in judged
        }
        if of_quantiles:
            figures[name] = of_quantiles
    return figures


def _breakdown(rows: pd.DataFrame, figure: Callable[[pd.DataFrame], float]) -> dict[str, Any]:
    return {
        "overall": figure(rows),
        "per_model": {str(name): figure(group) for name, group in rows.groupby("model")},
        "per_stage": {str(name): figure(group) for name, group in rows.groupby("stage")},
    }


def _distance(rows: pd.DataFrame, column: str) -> float:
    return fold_distance(
        rows["target_tokens"].to_numpy(dtype=np.float64),
        rows[column].to_numpy(dtype=np.float64),
        rows["fold"].to_numpy(),
    )


def _coverage(quantile: float, rows: pd.DataFrame) -> float:
    return coverage(rows["target_tokens"].to_numpy(), rows[str(quantile)].to_numpy())


def _pinball(quantile: float, rows: pd.DataFrame) -> float:
    return pinball_loss(rows["target_tokens"].to_numpy(), rows[str(quantile)].to_numpy(), quantile)


def _predictions(
    unseen: pd.DataFrame, training: pd.DataFrame, predictor: LengthPredictor | Ranker, seed: int
) -> pd.DataFrame:
    """``unseen`` with what is predicted and what each baseline would order it by."""
    parts = []
    for model, positions in unseen.groupby("model").indices.items():
        requests = stage_requests(unseen.iloc[positions])
        parts.append(_of_model(predictor, str(model), requests).set_index(positions))
    predicted = pd.concat(parts).sort_index()
    # Arrival says nothing about length, so any order that ignores the rows stands for it. The order
    # of collection does not: engines and stages come in blocks.
    arrival = np.random.default_rng(seed).permutation(len(unseen))
    return unseen.assign(
        **{str(name): column.to_numpy() for name, column in predicted.items()},
        fcfs=arrival,
        prompt_length=unseen["prompt_tokens"],
        stage_mean=_stage_mean(unseen, training),
    )


def _of_model(
    predictor: LengthPredictor | Ranker, model: str, requests: Sequence[StageRequest]
) -> pd.DataFrame:
    if isinstance(predictor, Ranker):
        return pd.DataFrame({"predicted": predictor.predict(model, requests)})
    quantiles = predictor.predict(model, requests, QUANTILES)
    named = pd.DataFrame(quantiles, columns=list(map(str, QUANTILES)))
    return named.assign(predicted=named["0.5"])


def _stage_mean(unseen: pd.DataFrame, training: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Mean of each row's (workflow, stage, model) in training; of all rows where there is none."""
    keys = ["workflow", "stage", "model"]
    means = training.groupby(keys)["target_tokens"].mean()
    found = means.reindex(pd.MultiIndex.from_frame(unseen[keys]))
    return found.fillna(training["target_tokens"].mean()).to_numpy()

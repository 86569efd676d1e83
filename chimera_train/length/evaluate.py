"""Judging the forests on questions that they have not seen, beside what a scheduler would use else.

Five folds by question: each fold is predicted by forests fitted on the other four, evaluated by the
code that the runtime uses.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.length.forests import fit_forests
from chimera_train.length.metrics import bootstrap_interval, coverage, fold_distance, pinball_loss
from chimera_train.length.rows import stage_requests
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.predict.length import LengthPredictor
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


def cross_validate(rows: pd.DataFrame, settings: LengthSettings, output: Output) -> dict[str, Any]:
    """The figures of ``judge`` for all ``rows`` (``rows.stage_rows``), each predicted unseen.

    Raises:
        DataError: there are too few questions (``require_enough``).
    """
    require_enough(rows)
    judged = []
    with output.progress() as progress:
        task = progress.add_task("cross-validating", total=N_FOLDS, note="")
        for fold in range(N_FOLDS):
            unseen = rows["fold"] == fold
            predictor = fit_forests(rows[~unseen], settings).predictor
            judged.append(_predictions(rows[unseen], rows[~unseen], predictor, settings.seed))
            progress.advance(task)
    return judge(pd.concat(judged, ignore_index=True), settings.seed)


def judge(judged: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Every figure of predicted rows, as the JSON result of ``fit length``.

    ``kendall_distance`` (of ŷ) and ``baselines`` are means over the folds of the distance within a
    fold; ``overall`` pools models and stages, ``per_stage`` pools stages of one id. ``coverage``
    and ``pinball`` (tokens) are means over rows, by quantile.

    Args:
        judged: rows with one more column for each of ``QUANTILES`` (as text) and ``BASELINES``.
        seed: of the bootstrap interval.
    """
    interval = bootstrap_interval(
        judged["remaining_tokens"].to_numpy(dtype=np.float64),
        judged["0.5"].to_numpy(),
        judged["fold"].to_numpy(),
        judged["program_id"].to_numpy(),
        np.random.default_rng(seed),
    )
    return {
        "n_programs": int(judged["program_id"].nunique()),
        "kendall_distance": {
            **_breakdown(judged, lambda rows: _distance(rows, "0.5")),
            "ci": list(interval),
        },
        "baselines": {name: _distance(judged, name) for name in BASELINES},
        "baselines_per_model": {
            str(model): {name: _distance(rows, name) for name in BASELINES}
            for model, rows in judged.groupby("model")
        },
        "coverage": {str(q): _breakdown(judged, partial(_coverage, q)) for q in QUANTILES},
        "pinball": {str(q): _breakdown(judged, partial(_pinball, q)) for q in QUANTILES},
    }


def _breakdown(rows: pd.DataFrame, figure: Callable[[pd.DataFrame], float]) -> dict[str, Any]:
    return {
        "overall": figure(rows),
        "per_model": {str(name): figure(group) for name, group in rows.groupby("model")},
        "per_stage": {str(name): figure(group) for name, group in rows.groupby("stage")},
    }


def _distance(rows: pd.DataFrame, column: str) -> float:
    return fold_distance(
        rows["remaining_tokens"].to_numpy(dtype=np.float64),
        rows[column].to_numpy(dtype=np.float64),
        rows["fold"].to_numpy(),
    )


def _coverage(quantile: float, rows: pd.DataFrame) -> float:
    return coverage(rows["remaining_tokens"].to_numpy(), rows[str(quantile)].to_numpy())


def _pinball(quantile: float, rows: pd.DataFrame) -> float:
    return pinball_loss(
        rows["remaining_tokens"].to_numpy(), rows[str(quantile)].to_numpy(), quantile
    )


def _predictions(
    unseen: pd.DataFrame, training: pd.DataFrame, predictor: LengthPredictor, seed: int
) -> pd.DataFrame:
    """``unseen`` with its predicted quantiles and what each baseline would order it by."""
    predicted = np.empty((len(unseen), len(QUANTILES)))
    for model, positions in unseen.groupby("model").indices.items():
        requests = stage_requests(unseen.iloc[positions])
        predicted[positions] = predictor.predict(str(model), requests, QUANTILES)
    # Arrival says nothing about length, so any order that ignores the rows stands for it. The order
    # of collection does not: engines and stages come in blocks.
    arrival = np.random.default_rng(seed).permutation(len(unseen))
    return unseen.assign(
        **dict(zip(map(str, QUANTILES), predicted.T, strict=True)),
        fcfs=arrival,
        prompt_length=unseen["prompt_tokens"],
        stage_mean=_stage_mean(unseen, training),
    )


def _stage_mean(unseen: pd.DataFrame, training: pd.DataFrame) -> npt.NDArray[np.float64]:
    """Mean of each row's (workflow, stage, model) in training; of all rows where there is none."""
    keys = ["workflow", "stage", "model"]
    means = training.groupby(keys)["remaining_tokens"].mean()
    found = means.reindex(pd.MultiIndex.from_frame(unseen[keys]))
    return found.fillna(training["remaining_tokens"].mean()).to_numpy()

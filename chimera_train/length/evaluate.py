"""Predicting lengths of questions that the forests have not seen, to judge them.

Five folds by question: each fold is predicted by forests fitted on the other four, evaluated by the
code that the runtime uses.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.length.estimators import FittedLength, fit_estimators
from chimera_train.length.judge import CELL, QUANTILES, judge
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.predict.features import StageRequest
from chimera_train.predict.fitted import fitted_questions
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.length_files import read_manifest
from chimera_train.predict.ranker import Ranker
from chimera_train.traces.split import N_FOLDS, fingerprints
from chimera_train.traces.store import Traces

__all__ = [
    "MIN_QUESTIONS",
    "Fit",
    "cross_validate",
    "evaluate_length",
    "judged_rows",
    "predict_others",
    "predict_unseen",
    "require_enough",
]

MIN_QUESTIONS = 25
_SEED = 0  # of the intervals and of the order of arrival

Fit = Callable[[pd.DataFrame, LengthSettings], FittedLength]
"""``estimators.fit_estimators`` or ``rank.fit_scorers``."""


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
    fit: Fit = fit_estimators,
) -> dict[str, Any]:
    """The figures of ``judge`` for all ``rows``, each predicted unseen (``predict_unseen``).

    Raises:
        DataError: there are too few questions (``require_enough``).
    """
    require_enough(rows)
    return judge(predict_unseen(rows, settings, output, fit), settings.seed)


def predict_unseen(
    rows: pd.DataFrame,
    settings: LengthSettings,
    output: Output,
    fit: Fit = fit_estimators,
) -> pd.DataFrame:
    """All ``rows`` (``rows.stage_rows``) as ``judge`` takes them, each predicted unseen.

    There are enough questions (``require_enough``) in the folds that ``rows`` has.
    """
    judged = []
    folds = sorted(rows["fold"].unique())
    with output.progress() as progress:
        task = progress.add_task("cross-validating", total=len(folds), note="")
        for fold in folds:
            unseen = rows["fold"] == fold
            predictor = fit(rows[~unseen], settings).predictor
            judged.append(judged_rows(rows[unseen], rows[~unseen], predictor, settings.seed))
            progress.advance(task)
    return pd.concat(judged, ignore_index=True)


def predict_others(
    rows: pd.DataFrame,
    predictor: LengthPredictor | Ranker,
    fitted: npt.NDArray[np.uint32],
    seed: int,
) -> pd.DataFrame:
    """Those of ``rows`` that ``predictor`` was not fitted on, as ``judge`` takes them.

    ``fitted`` are the fingerprints of the questions that it was fitted on. The means and medians
    that it is compared with are learnt from the rows of those; where there are none among ``rows``,
    from the other folds of ``rows``.

    Raises:
        DataError: it was fitted on every question, or all rows are of one fold.
    """
    is_known = np.isin(fingerprints(rows["question_id"]), fitted)
    if is_known.all():
        raise DataError(
            "The predictor was fitted on every question of these traces: evaluate it on others."
        )
    if is_known.any():
        return judged_rows(rows[~is_known], rows[is_known], predictor, seed)
    folds = rows["fold"].unique()
    if len(folds) < 2:
        raise DataError(
            "The programs are too few to compare a prediction with what their stages usually"
            " generate: evaluate on the programs of more questions."
        )
    judged = []
    for fold in sorted(folds):
        unseen = rows["fold"] == fold
        judged.append(judged_rows(rows[unseen], rows[~unseen], predictor, seed))
    return pd.concat(judged, ignore_index=True)


def evaluate_length(
    directory: Path, traces: Traces, output: Output
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The judged rows and the figures of a length directory on questions it was not fitted on.

    Raises:
        DataError: the directory or the traces cannot be used, or it was fitted on every question.
    """
    manifest = read_manifest(directory)
    rows = stage_rows(traces, manifest.target)
    predictor = (
        Ranker.load(directory)
        if manifest.target == "rank"
        else LengthPredictor.load(directory, manifest.target)
    )
    for name, known in (("model", manifest.models), ("workflow", manifest.workflows)):
        unknown = sorted(set(rows[name]) - set(known))
        if unknown and manifest.target != "rank":
            output.warn(
                f"{directory} was not fitted on {name} '{unknown[0]}': its lengths are predicted by"
                f" those of other {name}s."
            )
    judged = predict_others(rows, predictor, fitted_questions(directory), _SEED)
    return judged, judge(judged, _SEED)


def judged_rows(
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
        stage_mean=_of_stage(unseen, training, "mean"),
        stage_median=_of_stage(unseen, training, "median"),
    )


def _of_model(
    predictor: LengthPredictor | Ranker, model: str, requests: Sequence[StageRequest]
) -> pd.DataFrame:
    if isinstance(predictor, Ranker):
        return pd.DataFrame({"predicted": predictor.predict(model, requests)})
    quantiles = predictor.predict(model, requests, QUANTILES)
    named = pd.DataFrame(quantiles, columns=list(map(str, QUANTILES)))
    return named.assign(predicted=named["0.5"])


def _of_stage(
    unseen: pd.DataFrame, training: pd.DataFrame, statistic: Literal["mean", "median"]
) -> npt.NDArray[np.float64]:
    """``statistic`` of each row's cell in training; of all rows where there is none."""
    found = training.groupby(CELL)["target_tokens"].agg(statistic)
    of_rows = found.reindex(pd.MultiIndex.from_frame(unseen[CELL]))
    return of_rows.fillna(training["target_tokens"].agg(statistic)).to_numpy()

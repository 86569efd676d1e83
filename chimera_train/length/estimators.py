"""Fitting what a length predictor consists of: sketch, estimators, and what keeps them honest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from lightgbm import Booster
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.hashed_text import HashKey
from chimera_train.length.boosted import boosted_arrays, fit_boosters
from chimera_train.length.calibration import calibrated, covered, observed_cells, reserved
from chimera_train.length.forests import fit_forest, forest_arrays
from chimera_train.length.rows import stage_requests
from chimera_train.length.settings import LengthSettings
from chimera_train.length.sketch import fit_sketch
from chimera_train.predict.cells import Cells
from chimera_train.predict.encoder import Embedder
from chimera_train.predict.features import Features
from chimera_train.predict.length import Estimator, LengthPredictor
from chimera_train.predict.ranker import Ranker

__all__ = [
    "POOLED",
    "FittedEstimator",
    "FittedLength",
    "fit_estimators",
    "overhead_tokens",
    "training_table",
]

#: The name of an estimator that serves all models.
POOLED = "all models"

FittedEstimator: TypeAlias = RandomForestQuantileRegressor | Mapping[float, Booster]
"""A forest, or boosters by level, of log(1 + tokens)."""


@dataclass(frozen=True, slots=True)
class FittedLength:
    """What was fitted.

    Attributes:
        estimators: by model, or ``POOLED``, for MLflow and re-training; none with target ``rank``.
        predictor: the same as the runtime evaluates them, or the scorers.
        overheads: model → tokens that its chat template adds: median of prompt − system − user.
        n_rows: model → stages it was fitted on.
    """

    estimators: Mapping[str, FittedEstimator]
    predictor: LengthPredictor | Ranker
    overheads: Mapping[str, int]
    n_rows: Mapping[str, int]

    @classmethod
    def of(
        cls,
        estimators: Mapping[str, FittedEstimator],
        predictor: LengthPredictor | Ranker,
        rows: pd.DataFrame,
    ) -> "FittedLength":
        """What was fitted on ``rows``."""
        n_rows = {str(model): int(n) for model, n in rows["model"].value_counts().items()}
        return cls(estimators, predictor, overhead_tokens(rows), n_rows)


def fit_estimators(
    rows: pd.DataFrame,
    settings: LengthSettings,
    embedder: Embedder | None = None,
    key: HashKey | None = None,
) -> FittedLength:
    """Fit a sketch and estimators on ``rows`` (``rows.stage_rows``), and calibrate them.

    The intervals are calibrated with estimators that did not see the calibration questions; those
    that are used are fitted on all rows, like them. ``embedder`` is the encoder of
    ``settings.sketch: encoder``, ``key`` that of hashed texts.
    """
    is_kept = reserved(rows["question_id"])
    # Half the trees: they order worse by a trifle, and reach as far.
    fewer = settings.model_copy(update={"n_estimators": -(-settings.n_estimators // 2)})
    _, trial = _fit_all(rows[~is_kept], fewer, embedder, key)
    estimators, predictor = _fit_all(rows, settings, embedder, key)
    return FittedLength.of(estimators, calibrated(predictor, trial, rows[is_kept]), rows)


def _fit_all(
    rows: pd.DataFrame, settings: LengthSettings, embedder: Embedder | None, key: HashKey | None
) -> tuple[dict[str, FittedEstimator], LengthPredictor]:
    """Estimators of all models, and the predictor that they make, uncalibrated."""
    features, X = training_table(rows, settings, embedder, key)
    logs = np.log1p(rows["target_tokens"].to_numpy(dtype=np.float64))
    by_model = {str(model): own for model, own in rows.groupby("model").indices.items()}
    groups = by_model if settings.per_model else {POOLED: np.arange(len(rows))}
    models_in_one = 1 if settings.per_model else len(by_model)
    estimators: dict[str, FittedEstimator] = {}
    arrays: dict[str, Estimator] = {}
    for name, own in groups.items():
        estimators[name], arrays[name] = _fit(X[own], logs[own], settings, models_in_one)
    of_models = {model: arrays[model if settings.per_model else POOLED] for model in by_model}
    bounds = {
        model: covered(features, of_models[model], model, rows.iloc[own])
        for model, own in by_model.items()
    }
    cells = Cells(observed_cells(rows))
    return estimators, LengthPredictor(features, of_models, cells, bounds, overhead_tokens(rows))


def _fit(
    X: npt.NDArray[np.float32],
    y: npt.NDArray[np.float64],
    settings: LengthSettings,
    models: int,
) -> tuple[FittedEstimator, Estimator]:
    """An estimator of so many models, and what the runtime evaluates."""
    if settings.estimator == "boosted":
        boosters = fit_boosters(X, y, settings.boosted, seed=settings.seed, n_jobs=settings.n_jobs)
        return boosters, boosted_arrays(boosters, y)
    forest = fit_forest(X, y, settings, settings.max_samples * models)
    return forest, forest_arrays(forest)


def training_table(
    rows: pd.DataFrame,
    settings: LengthSettings,
    embedder: Embedder | None = None,
    key: HashKey | None = None,
) -> tuple[Features, npt.NDArray[np.float32]]:
    """What a predictor sees of ``rows``, with a sketch of their texts: shape (n, n_features)."""
    sketch, scores = fit_sketch(rows, settings, embedder, key)
    features = Features(
        sorted(rows["workflow"].unique()),
        sorted(rows["stage"].unique()),
        sorted(rows["model"].unique()),
        sketch,
        pooled=not settings.per_model,
        remembered_texts=rows["text"].nunique(),
    )
    X = np.empty((len(rows), features.n_features), dtype=np.float32)
    for model, own in rows.groupby("model").indices.items():
        X[own], _ = features.rows(str(model), stage_requests(rows.iloc[own]))
    if sketch is not None:
        X[:, -1] = scores
    return features, X


def overhead_tokens(rows: pd.DataFrame) -> dict[str, int]:
    """``FittedLength.overheads`` of ``rows``."""
    overhead = rows["prompt_tokens"] - rows["system_tokens"] - rows["user_tokens"]
    return {str(model): int(own.median()) for model, own in overhead.groupby(rows["model"])}

"""Fitting: one text sketch shared by all models, and one quantile regression forest per model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.length.calibration import calibrated, reserved
from chimera_train.length.rows import stage_requests
from chimera_train.length.settings import LengthSettings
from chimera_train.length.sketch import fit_sketch
from chimera_train.predict.features import Features
from chimera_train.predict.forest import ForestArrays
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.ranker import Ranker

__all__ = [
    "POOLED",
    "FittedLength",
    "fit_forests",
    "forest_arrays",
    "overhead_tokens",
    "training_table",
]

#: The name of an estimator that serves all models.
POOLED = "all models"


@dataclass(frozen=True, slots=True)
class FittedLength:
    """What was fitted.

    Attributes:
        forests: model, or ``POOLED``, → the scikit-learn estimator of log(1 + tokens), for MLflow
            (skops) and re-training; none with target ``rank``.
        predictor: the same forests as the runtime evaluates them, or the scorers.
        overheads: model → tokens that its chat template adds: median of prompt − system − user.
        n_rows: model → stages it was fitted on.
    """

    forests: Mapping[str, RandomForestQuantileRegressor]
    predictor: LengthPredictor | Ranker
    overheads: Mapping[str, int]
    n_rows: Mapping[str, int]


def fit_forests(rows: pd.DataFrame, settings: LengthSettings) -> FittedLength:
    """Fit a sketch and the forests on ``rows`` (``rows.stage_rows``), and calibrate them."""
    is_kept = reserved(rows["question_id"])
    fitted, kept = rows[~is_kept], rows[is_kept]
    features, X = training_table(fitted, settings)
    logs = np.log1p(fitted["target_tokens"].to_numpy(dtype=np.float64))
    by_model = fitted.groupby("model").indices
    groups = by_model if settings.per_model else {POOLED: np.arange(len(fitted))}
    most = settings.max_samples * (1 if settings.per_model else len(by_model))
    forests = {
        str(name): _forest(settings, min(most, len(own))).fit(X[own], logs[own])
        for name, own in groups.items()
    }
    arrays = {name: forest_arrays(forest) for name, forest in forests.items()}
    overheads = overhead_tokens(fitted)
    predictor = calibrated(
        features,
        {str(model): arrays[str(model) if settings.per_model else POOLED] for model in by_model},
        fitted,
        kept,
        overheads,
    )
    n_rows = {str(model): len(own) for model, own in by_model.items()}
    return FittedLength(forests, predictor, overheads, n_rows)


def training_table(
    rows: pd.DataFrame, settings: LengthSettings
) -> tuple[Features, npt.NDArray[np.float32]]:
    """What a predictor sees of ``rows``, with a sketch of their texts: shape (n, n_features)."""
    sketch, scores = fit_sketch(rows, settings)
    features = Features(
        sorted(rows["workflow"].unique()),
        sorted(rows["stage"].unique()),
        sorted(rows["model"].unique()),
        sketch,
        pooled=not settings.per_model,
    )
    X = np.empty((len(rows), features.n_features), dtype=np.float32)
    for model, own in rows.groupby("model").indices.items():
        X[own] = features.rows(str(model), stage_requests(rows.iloc[own]))
    if sketch is not None:
        X[:, -1] = scores
    return features, X


def overhead_tokens(rows: pd.DataFrame) -> dict[str, int]:
    """``FittedLength.overheads`` of ``rows``."""
    overhead = rows["prompt_tokens"] - rows["system_tokens"] - rows["user_tokens"]
    return {str(model): int(own.median()) for model, own in overhead.groupby(rows["model"])}


def forest_arrays(forest: RandomForestQuantileRegressor) -> ForestArrays:
    """The fitted ``forest`` as flat arrays that give the same quantiles."""
    targets = np.asarray(forest.forest_.y_train)[0]
    values, target_rank, value_rows = np.unique(targets, return_inverse=True, return_counts=True)
    leaves = np.asarray(forest.forest_.y_train_leaves)[:, :, 0, :]

    parts: dict[str, list[npt.NDArray[Any]]] = {
        name: []
        for name in ("roots", "feature", "threshold", "left", "right", "sizes", "leaf_ranks")
    }
    offset = 0
    for estimator, tree_leaves in zip(forest.estimators_, leaves, strict=True):
        tree = estimator.tree_
        is_leaf = tree.children_left == -1
        indices = tree_leaves[: tree.node_count]  # 1-based, padded with 0
        parts["roots"].append(np.array([offset]))
        parts["feature"].append(np.where(is_leaf, -1, tree.feature))
        parts["threshold"].append(_round_down(tree.threshold))
        parts["left"].append(np.where(is_leaf, -1, tree.children_left + offset))
        parts["right"].append(np.where(is_leaf, -1, tree.children_right + offset))
        parts["sizes"].append((indices > 0).sum(axis=1))
        parts["leaf_ranks"].append(target_rank[indices[indices > 0] - 1])
        offset += tree.node_count
    flat = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    leaf_start = np.concatenate([[0], np.cumsum(flat.pop("sizes"))])
    threshold = flat.pop("threshold")
    return ForestArrays(
        threshold=threshold,
        leaf_start=leaf_start.astype(np.int32),
        values=values,
        value_rows=value_rows.astype(np.int32),
        **{name: array.astype(np.int32) for name, array in flat.items()},
    )


def _round_down(threshold: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """The largest float32 not above each threshold: float32 rows compare with it just the same."""
    rounded = threshold.astype(np.float32)
    too_high = rounded > threshold
    rounded[too_high] = np.nextafter(rounded[too_high], np.float32(-np.inf))
    return rounded


def _forest(settings: LengthSettings, max_samples: int) -> RandomForestQuantileRegressor:
    return RandomForestQuantileRegressor(
        n_estimators=settings.n_estimators,
        min_samples_leaf=settings.min_samples_leaf,
        max_features=settings.max_features,
        max_samples=max_samples,
        # Rows that nothing splits, such as verdicts of one length, can fill a leaf by thousands,
        # and the library stores every leaf at the size of the largest: gigabytes. Other leaves
        # hold fewer than this bound, bootstrap copies included.
        max_samples_leaf=4 * settings.min_samples_leaf,
        random_state=settings.seed,
        n_jobs=settings.n_jobs,
    )

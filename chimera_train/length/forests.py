"""Fitting quantile regression forests, and laying them out for the runtime."""

from typing import Any

import numpy as np
import numpy.typing as npt
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.length.settings import LengthSettings
from chimera_train.predict.forest import ForestArrays

__all__ = ["fit_forest", "forest_arrays"]


def fit_forest(
    X: npt.NDArray[np.float32],
    y: npt.NDArray[np.float64],
    settings: LengthSettings,
    max_samples: int,
) -> RandomForestQuantileRegressor:
    """A forest of rows of shape (n, n_features) and targets of shape (n,).

    A tree is grown from ``max_samples`` rows at most.
    """
    forest = RandomForestQuantileRegressor(
        n_estimators=settings.n_estimators,
        min_samples_leaf=settings.min_samples_leaf,
        max_features=settings.max_features,
        max_samples=min(max_samples, len(X)),
        # Rows that nothing splits, such as verdicts of one length, can fill a leaf by thousands,
        # and the library stores every leaf at the size of the largest: gigabytes. Other leaves
        # hold fewer than this bound, bootstrap copies included.
        max_samples_leaf=4 * settings.min_samples_leaf,
        random_state=settings.seed,
        n_jobs=settings.n_jobs,
    )
    return forest.fit(X, y)


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

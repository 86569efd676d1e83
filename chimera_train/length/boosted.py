"""Fitting boosted quantile trees with LightGBM: one booster for each level of a grid."""

from collections.abc import Mapping
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from chimera_train.length.settings import BoostedSettings
from chimera_train.predict.boosted import BoostedArrays

__all__ = ["LEVELS", "boosted_arrays", "fit_boosters"]

#: Levels of the quantiles that have boosters: both ends of the intervals, and their tails.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def fit_boosters(
    X: npt.NDArray[np.float32],
    y: npt.NDArray[np.float64],
    settings: BoostedSettings,
    *,
    seed: int,
    n_jobs: int,
) -> dict[float, lightgbm.Booster]:
    """Level → booster, for each of ``LEVELS``.

    A leaf's quantile is the less certain the farther its level is from the median, and boosting
    adds up what it gets wrong, so that the intervals become too narrow. Hence leaves of level q are
    larger than the median's by √(½ / min(q, 1 − q)).

    Args:
        X: rows, shape (n, n_features).
        y: their targets, shape (n,).
        settings: the same for each level.
        seed: of the sample of rows that columns are binned by, where there are many.
        n_jobs: levels that are fitted at a time; -1 takes all cores. Results do not depend on it:
            each level has one thread, as threads that share one wait for each other at every node.
    """
    fit = delayed(_fit_level)
    fitted = Parallel(n_jobs=n_jobs, backend="threading")(
        fit(X, y, level, settings, seed) for level in LEVELS
    )
    return dict(zip(LEVELS, fitted, strict=True))


def _fit_level(
    X: npt.NDArray[np.float32],
    y: npt.NDArray[np.float64],
    level: float,
    settings: BoostedSettings,
    seed: int,
) -> lightgbm.Booster:
    widening = (0.5 / min(level, 1.0 - level)) ** 0.5
    parameters: dict[str, Any] = {
        "objective": "quantile",
        "alpha": level,
        "num_leaves": settings.max_leaves,
        "learning_rate": settings.learning_rate,
        "min_data_in_leaf": round(settings.min_samples_leaf * widening),
        "use_missing": False,  # no column has gaps, and BoostedArrays could not follow them
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    data = lightgbm.Dataset(X, y, params=parameters)
    return lightgbm.train(parameters, data, num_boost_round=settings.n_rounds)


def boosted_arrays(
    boosters: Mapping[float, lightgbm.Booster], y: npt.NDArray[np.float64]
) -> BoostedArrays:
    """The fitted ``boosters`` as flat arrays that give the same quantiles, sorted.

    The same for all rows of float32, but that LightGBM takes ±1e-35 and what is between for zero.

    Args:
        boosters: level → booster, as ``fit_boosters`` gives them.
        y: the targets that they were fitted on, shape (n,).
    """
    flat = _Flat(len(y))
    first_tree = [0]
    for level in sorted(boosters):
        for tree in boosters[level].dump_model()["tree_info"]:
            flat.add(tree["tree_structure"])
        first_tree.append(len(flat.roots))
    values, value_rows = np.unique(y, return_counts=True)
    return BoostedArrays(
        levels=np.array(sorted(boosters)),
        first_tree=np.array(first_tree, dtype=np.int32),
        roots=np.array(flat.roots, dtype=np.int32),
        feature=np.array(flat.feature, dtype=np.int32),
        threshold=np.array(flat.threshold, dtype=np.float64),
        left=np.array(flat.left, dtype=np.int32),
        right=np.array(flat.right, dtype=np.int32),
        leaf_value=np.array(flat.leaf_value, dtype=np.float64),
        leaf_rows=np.array(flat.leaf_rows, dtype=np.int32),
        values=values,
        value_rows=value_rows.astype(np.int32),
    )


class _Flat:
    """The columns of ``BoostedArrays`` that describe trees fitted on ``n_rows``, as they grow."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self.roots: list[int] = []
        self.feature: list[int] = []
        self.threshold: list[float] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.leaf_value: list[float] = []
        self.leaf_rows: list[int] = []

    def add(self, tree: Mapping[str, Any]) -> None:
        """Add a tree as ``Booster.dump_model`` nests it."""
        waiting = [(tree, self.roots, len(self.roots))]
        self.roots.append(0)
        while waiting:  # trees of a thousand leaves may be as deep
            node, link, position = waiting.pop()
            if "leaf_value" in node:
                link[position] = ~len(self.leaf_value)
                self.leaf_value.append(node["leaf_value"])
                # A leaf that is a whole tree has no count in some versions.
                self.leaf_rows.append(node.get("leaf_count", self._n_rows))
                continue
            number = link[position] = len(self.feature)
            self.feature.append(node["split_feature"])
            self.threshold.append(node["threshold"])
            self.left.append(0)
            self.right.append(0)
            waiting.append((node["left_child"], self.left, number))
            waiting.append((node["right_child"], self.right, number))

"""Fitting boosted quantile trees with LightGBM: one booster for each level of a grid."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed

from chimera_train.length.settings import BoostedSettings
from chimera_train.predict.boosted import BoostedArrays
from chimera_train.tree_export import flat_trees

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
    levels = sorted(boosters)
    trees, leaf_rows = flat_trees([boosters[level] for level in levels], len(y))
    values, value_rows = np.unique(y, return_counts=True)
    return BoostedArrays(
        levels=np.array(levels),
        **{field.name: getattr(trees, field.name) for field in fields(trees)},
        leaf_rows=leaf_rows,
        values=values,
        value_rows=value_rows.astype(np.int32),
    )

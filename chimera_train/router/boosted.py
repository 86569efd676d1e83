"""The router of boosted trees: numbers counted in the text and its sketch, by LightGBM."""

from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.predict.router_scorers import BoostedScorer
from chimera_train.router.labels import RouterData
from chimera_train.router.outcomes import prior_rates, single_outcome
from chimera_train.router.settings import BoostedSettings, RouterSettings
from chimera_train.term_space import TermSpace
from chimera_train.traces.split import hashed
from chimera_train.tree_export import flat_trees

__all__ = ["fit_boosted"]

Array = npt.NDArray[np.float64]

# One question in so many is held out to see how many trees are enough.
_HELD_OUT = 5
_LOSS = "cross_entropy"


def fit_boosted(training: RouterData, space: TermSpace, settings: RouterSettings) -> BoostedScorer:
    """Fit on the graded questions of each model; one with a single outcome gets its prior.

    The loss is the cross entropy with the success rates. The number of trees is the same for all
    models: that with the least loss on a fifth of the training questions, held out from trial
    trees. Those that are used are fitted on all.
    """
    sketch = space.sketch(space.directions)
    X = BoostedScorer.features(sketch, training.texts)
    success = training.success.copy()
    for m, prior in enumerate(prior_rates(training)):
        if single_outcome(training)[m]:
            success[:, m] = prior  # leaves nothing to split
    parameters = _parameters(settings.boosted, settings.seed)
    held_out = hashed(pd.Series(training.question_ids), "router boosted", _HELD_OUT) == 0
    curves = [
        _curve(X, success[:, m], training.weights[:, m], held_out, parameters, settings.boosted)
        for m in range(len(training.models))
    ]
    n_rounds = int(np.sum(curves, axis=0).argmin()) + 1
    boosters = [
        lightgbm.train(
            parameters,
            _dataset(X, success[:, m], training.weights[:, m], parameters),
            num_boost_round=n_rounds,
        )
        for m in range(len(training.models))
    ]
    trees, _ = flat_trees(boosters, len(X))
    return BoostedScorer(sketch, trees)


def _parameters(settings: BoostedSettings, seed: int) -> dict[str, Any]:
    return {
        "objective": _LOSS,
        "metric": _LOSS,
        "num_leaves": settings.max_leaves,
        "learning_rate": settings.learning_rate,
        "min_data_in_leaf": settings.min_samples_leaf,
        "feature_fraction": settings.max_features,
        "lambda_l2": settings.ridge,
        "use_missing": False,  # no column has gaps, and TreeSums could not follow them
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def _dataset(
    X: npt.NDArray[np.float32], success: Array, weights: Array, parameters: dict[str, Any]
) -> lightgbm.Dataset:
    graded = weights > 0
    return lightgbm.Dataset(X[graded], success[graded], weight=weights[graded], params=parameters)


def _curve(
    X: npt.NDArray[np.float32],
    success: Array,
    weights: Array,
    held_out: npt.NDArray[np.bool_],
    parameters: dict[str, Any],
    settings: BoostedSettings,
) -> Array:
    """Loss on the held-out questions after each round, summed over samples, (max_rounds,)."""
    if not (weights[held_out].any() and weights[~held_out].any()):
        return np.zeros(settings.max_rounds)
    known = _dataset(X, success, np.where(held_out, 0.0, weights), parameters)
    asked = _dataset(X, success, np.where(held_out, weights, 0.0), parameters)
    found: dict[str, dict[str, list[float]]] = {}
    lightgbm.train(
        parameters,
        known,
        num_boost_round=settings.max_rounds,
        valid_sets=[asked],
        valid_names=["asked"],
        callbacks=[lightgbm.record_evaluation(found)],
    )
    losses = np.array(found["asked"][_LOSS]) * weights[held_out].sum()
    # Training ends where no split gains anything any more.
    return np.pad(losses, (0, settings.max_rounds - len(losses)), mode="edge")

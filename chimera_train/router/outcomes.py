"""Success rates as every kind of router is fitted on them: priors, and weighed yes-or-no rows."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.router.labels import RouterData

__all__ = ["Outcomes", "outcomes", "prior_rates", "single_outcome"]

Array = npt.NDArray[np.float64]


class Outcomes(NamedTuple):
    """One model's success as a classifier takes it.

    Attributes:
        rows: of the questions, shape (n,); one that was solved by some samples only is there twice.
        solved: shape (n,).
        weights: how many samples each stands for, positive, shape (n,).
    """

    rows: npt.NDArray[np.int64]
    solved: npt.NDArray[np.bool_]
    weights: Array


def outcomes(data: RouterData, model: int) -> Outcomes:
    """The graded questions of the model in that column: solved by the rate, unsolved by the rest.

    The log loss of a prediction over them is the cross entropy with the rates, times the samples.
    """
    graded = np.flatnonzero(~np.isnan(data.success[:, model]))
    rate, samples = data.success[graded, model], data.weights[graded, model]
    weights = np.concatenate([rate * samples, (1 - rate) * samples])
    solved = np.repeat([True, False], len(graded))
    kept = weights > 0
    return Outcomes(np.tile(graded, 2)[kept], solved[kept], weights[kept])


def prior_rates(data: RouterData) -> Array:
    """Each model's success rate with one more sample that half succeeds, shape (n_models,).

    So it lies strictly between 0 and 1 (Krichevsky and Trofimov 1981).
    """
    solved = np.nansum(data.success * data.weights, axis=0)
    return (solved + 0.5) / (data.weights.sum(axis=0) + 1)


def single_outcome(data: RouterData) -> list[bool]:
    """Whether all samples of a model succeeded, or all failed: texts tell nothing of it."""
    return [len(set(outcomes(data, m).solved.tolist())) < 2 for m in range(len(data.models))]

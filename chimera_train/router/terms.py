"""The router of words: a logistic regression per model on TF-IDF."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.linear_model import LogisticRegression

from chimera_train.predict.router_scorers import TermScorer, log_odds
from chimera_train.router.labels import RouterData
from chimera_train.router.outcomes import Outcomes, outcomes, prior_rates
from chimera_train.term_space import TermSpace
from chimera_train.traces.split import hashed

__all__ = ["fit_terms"]

Array = npt.NDArray[np.float64]

_STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0)
_FOLDS = 3


def fit_terms(training: RouterData, space: TermSpace) -> TermScorer:
    """Fit on the graded questions of each model; one with a single outcome gets its prior.

    The inverse strength of the penalty, C, is the same for all models: that with the least log loss
    in cross-validation over the training questions.
    """
    of_models = [outcomes(training, m) for m in range(len(training.models))]
    prior = log_odds(prior_rates(training))
    strength = _best_strength(training, space.vectors, of_models)
    columns = [
        _regression(space.vectors, rows, strength, logit)
        for rows, logit in zip(of_models, prior, strict=True)
    ]
    coefficients = np.column_stack([column for column, _ in columns])
    intercepts = np.array([intercept for _, intercept in columns])
    return TermScorer(space.sketch(space.directions), coefficients.astype(np.float32), intercepts)


def _best_strength(training: RouterData, weights: Any, of_models: list[Outcomes]) -> float:
    fold = hashed(pd.Series(training.question_ids), "router terms", _FOLDS)
    losses = np.zeros(len(_STRENGTHS))
    for rows in of_models:
        for k in range(_FOLDS):
            held_out = fold[rows.rows] == k
            known, asked = _part(rows, ~held_out), _part(rows, held_out)
            if set(known.solved.tolist()) != {True, False}:
                continue
            for i, strength in enumerate(_STRENGTHS):
                column, intercept = _regression(weights, known, strength, 0.0)
                losses[i] += _log_loss(weights[asked.rows] @ column + intercept, asked)
    return _STRENGTHS[int(losses.argmin())]


def _part(rows: Outcomes, mask: npt.NDArray[np.bool_]) -> Outcomes:
    return Outcomes(rows.rows[mask], rows.solved[mask], rows.weights[mask])


def _regression(weights: Any, rows: Outcomes, strength: float, prior: float) -> tuple[Array, float]:
    """Coefficients and intercept; none and ``prior`` where there is nothing to tell apart."""
    if set(rows.solved.tolist()) != {True, False}:
        return np.zeros(weights.shape[1]), prior
    regression = LogisticRegression(C=strength, max_iter=1000)
    regression.fit(weights[rows.rows], rows.solved, sample_weight=rows.weights)
    return regression.coef_[0], float(regression.intercept_[0])


def _log_loss(logits: Array, rows: Outcomes) -> float:
    return float(np.sum(rows.weights * np.logaddexp(0.0, np.where(rows.solved, -logits, logits))))

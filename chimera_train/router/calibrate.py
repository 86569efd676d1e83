"""Turning logits into probabilities that mean what they say.

Four steps, each kept only if cross-validation on the validation questions says that it helps:

1. Nothing: the logits are taken at their word.
2. How easy a question is, and how models differ on it, are scaled apart, alike for all models: of
   the second a scorer knows much less. It is a shrinkage of the differences between models, and
   moves no model's mean logit.
3. Per model, Platt's scale and bias (1999).
4. Per model, where questions are many, isotonic regression on top of it (Zadrozny and Elkan 2002).

The last two must be clearly better: what a few questions happen to say about one model and not
about another moves choices between them for nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from sklearn.isotonic import IsotonicRegression

from chimera_train.predict.calibration import Calibration, Label, sigmoid

__all__ = ["LEAST_FOR_ISOTONIC", "fit_calibration"]

Array = npt.NDArray[np.float64]
Fit = Callable[[str, Array, Array, Array], Label]

#: Graded validation questions of a model from which isotonic regression is tried.
LEAST_FOR_ISOTONIC = 1000

_FOLDS = 5
# Standard errors of the loss saved by which a calibration must be better than a simpler one.
_CLEARLY = 2.0
# Weight of the pull towards the identity, in questions. It keeps the scale finite where the
# validation questions happen to be separable.
_PRIOR_QUESTIONS = 1.0
# Isotonic regression makes ties of what it pools; this much of the identity keeps their order.
_SLOPE = 1e-3
_LEAST_PROBABILITY = 1e-6
_MOST_STEPS, _LEAST_STEP = 50, 1e-7


def fit_calibration(
    models: Sequence[str], success: Array, logits: Array, weights: Array | None = None
) -> Calibration:
    """The calibration of a router's logits.

    Args:
        models: names of the columns.
        success: success rates of the validation questions, shape (n, n_models), NaN where unknown.
        logits: the router's logits on them, shape (n, n_models).
        weights: samples behind each rate, shape (n, n_models); None counts each rate once.
    """
    weights = np.ones_like(success) if weights is None else weights
    labels = []
    for m, shared in enumerate(_shared_if_better(models, success, logits, weights)):
        rows = ~np.isnan(success[:, m])
        scaled = shared.scale * logits[rows, m] + shared.common * logits[rows].mean(axis=1)
        own = _best(shared.model, success[rows, m], scaled + shared.bias, weights[rows, m])
        labels.append(
            own.model_copy(
                update={
                    "scale": own.scale * shared.scale,
                    "common": own.scale * shared.common,
                    "bias": own.scale * shared.bias + own.bias,
                }
            )
        )
    return Calibration(labels)


def _shared_if_better(
    models: Sequence[str], success: Array, logits: Array, weights: Array
) -> list[Label]:
    identity = [Label(model=model) for model in models]
    if len(models) < 2 or len(success) < 2 * _FOLDS:
        return identity
    fold = np.arange(len(success)) % _FOLDS
    losses = np.zeros(2)
    for k in range(_FOLDS):
        seen, unseen = fold != k, fold == k
        shared = _shared(models, success[seen], logits[seen], weights[seen])
        for i, labels in enumerate((identity, shared)):
            p = Calibration(labels).apply(logits[unseen])
            losses[i] += np.nansum(_loss(success[unseen], p, weights[unseen]))
    return _shared(models, success, logits, weights) if losses[1] < losses[0] else identity


def _shared(models: Sequence[str], success: Array, logits: Array, weights: Array) -> list[Label]:
    """Scales of the mean logit of a text, and of each model's difference from it, around means."""
    common = logits.mean(axis=1, keepdims=True)
    difference = logits - common
    level, offsets = common.mean(), difference.mean(axis=0)
    graded = ~np.isnan(success)
    parts = np.column_stack(
        [np.broadcast_to(common - level, logits.shape)[graded], (difference - offsets)[graded]]
    )
    constant = np.broadcast_to(level + offsets, logits.shape)[graded]

    def scaled(parameters: Array) -> tuple[Array, Array]:
        both = np.exp(parameters) * parts
        return both.sum(axis=1) + constant, both

    ease, apart = np.exp(_least_cross_entropy(success[graded], weights[graded], scaled))
    bias = (1 - ease) * level + (1 - apart) * offsets
    return [
        Label(model=model, scale=float(apart), common=float(ease - apart), bias=float(own))
        for model, own in zip(models, bias, strict=True)
    ]


def _best(model: str, y: Array, logits: Array, weights: Array) -> Label:
    chosen: Fit = _identity
    if len(y) >= 2 * _FOLDS:
        loss = _unseen_loss(chosen, model, y, logits, weights)
        for fit in (_platt, _isotonic) if len(y) >= LEAST_FOR_ISOTONIC else (_platt,):
            tried = _unseen_loss(fit, model, y, logits, weights)
            saved = loss - tried
            if saved.sum() > _CLEARLY * np.sqrt(len(saved)) * saved.std():
                chosen, loss = fit, tried
    return chosen(model, y, logits, weights)


def _unseen_loss(fit: Fit, model: str, y: Array, logits: Array, weights: Array) -> Array:
    """Cross entropy of each rate under what is fitted on the other folds, in nats, shape (n,)."""
    fold = np.arange(len(y)) % _FOLDS
    p = np.empty(len(y))
    for k in range(_FOLDS):
        seen, unseen = fold != k, fold == k
        label = fit(model, y[seen], logits[seen], weights[seen])
        p[unseen] = Calibration([label]).apply(logits[unseen, None])[:, 0]
    return _loss(y, p, weights)


def _identity(model: str, _y: Array, _logits: Array, _weights: Array) -> Label:
    return Label(model=model)


def _platt(model: str, y: Array, logits: Array, weights: Array) -> Label:
    def scaled(parameters: Array) -> tuple[Array, Array]:
        own = np.exp(parameters[0]) * logits
        return own + parameters[1], np.column_stack([own, np.ones(len(own))])

    log_scale, bias = _least_cross_entropy(y, weights, scaled)
    return Label(model=model, scale=float(np.exp(log_scale)), bias=float(bias))


def _isotonic(model: str, y: Array, logits: Array, weights: Array) -> Label:
    """Platt's, then a line from 0 through the centres of what isotonic regression pools to 1."""
    platt = _platt(model, y, logits, weights)
    p = Calibration([platt]).apply(logits[:, None])[:, 0]
    fitted = IsotonicRegression().fit_transform(p, y, sample_weight=weights)
    _, block = np.unique(fitted, return_inverse=True)
    before = np.bincount(block, weights=weights * p) / np.bincount(block, weights=weights)
    after = (1 - _SLOPE) * np.unique(fitted) + _SLOPE * before
    inside = (before > 0) & (before < 1)
    centres = zip(before[inside].tolist(), after[inside].tolist(), strict=True)
    return platt.model_copy(update={"knots": [(0.0, 0.0), *centres, (1.0, 1.0)]})


def _least_cross_entropy(
    y: Array, weights: Array, logits: Callable[[Array], tuple[Array, Array]]
) -> Array:
    """The two parameters whose ``logits`` explain rates best, pulled towards 0 (Fisher scoring).

    ``logits`` gives n logits and their derivatives by the parameters, shape (n, 2). A scale is
    fitted as its logarithm, which keeps it positive.
    """

    def at(parameters: Array) -> tuple[float, Array, Array]:
        z, slopes = logits(parameters)
        penalty = _PRIOR_QUESTIONS * float(parameters @ parameters) / 2
        return float(weights @ (np.logaddexp(0.0, z) - y * z)) + penalty, z, slopes

    parameters = np.zeros(2)
    loss, z, slopes = at(parameters)
    for _ in range(_MOST_STEPS):
        p = sigmoid(z)
        gradient = slopes.T @ (weights * (p - y)) + _PRIOR_QUESTIONS * parameters
        curvature = (slopes.T * (weights * p * (1 - p))) @ slopes + _PRIOR_QUESTIONS * np.eye(2)
        step = np.clip(np.linalg.solve(curvature, -gradient), -1, 1)
        tried = at(parameters + step)
        while tried[0] > loss and np.abs(step).max() > _LEAST_STEP:
            step = step / 2
            tried = at(parameters + step)
        if tried[0] > loss or np.abs(step).max() <= _LEAST_STEP:
            break
        parameters, (loss, z, slopes) = parameters + step, tried
    return parameters


def _loss(y: Array, p: Array, weights: Array) -> Array:
    """Cross entropy of each rate under probabilities, in nats; NaN where there is no rate."""
    p = np.clip(p, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return -weights * (y * np.log(p) + (1 - y) * np.log1p(-p))

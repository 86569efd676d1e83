"""Turning a logit into a probability that means what it says.

A network that ranks questions well may still be too sure of itself. Per model, a scale and a bias
of the logit are fitted to the success rates of the validation questions (Platt 1999); where these
are many, isotonic regression on top of it is tried as well (Zadrozny and Elkan 2002). Each is kept
only if cross-validation says that it is clearly better: what validation questions happen to say
about one model and not about another moves choices between them for nothing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
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


def fit_calibration(
    models: Sequence[str], success: Array, logits: Array, weights: Array | None = None
) -> Calibration:
    """The calibration of each model's logit; none reverses a ranking.

    Args:
        models: names of the columns.
        success: success rates of the validation questions, shape (n, n_models), NaN where unknown.
        logits: the router's logits on them, shape (n, n_models).
        weights: samples behind each rate, shape (n, n_models); None counts each rate once.
    """
    weights = np.ones_like(success) if weights is None else weights
    labels = []
    for m, model in enumerate(models):
        rows = ~np.isnan(success[:, m])
        labels.append(_best(model, success[rows, m], logits[rows, m], weights[rows, m]))
    return Calibration(labels)


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
    p = np.clip(p, _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
    return -weights * (y * np.log(p) + (1 - y) * np.log1p(-p))


def _identity(model: str, _y: Array, _logits: Array, _weights: Array) -> Label:
    return Label(model=model)


def _platt(model: str, y: Array, logits: Array, weights: Array) -> Label:
    def objective(parameters: Array) -> tuple[float, Array]:
        log_scale, bias = parameters  # the logarithm keeps the scale positive: no ranking changes
        scaled = np.exp(log_scale) * logits
        z = scaled + bias
        loss = weights @ (np.logaddexp(0.0, z) - y * z)
        excess = weights * (sigmoid(z) - y)
        gradient = np.array([excess @ scaled, excess.sum()]) + _PRIOR_QUESTIONS * parameters
        return float(loss + _PRIOR_QUESTIONS * parameters @ parameters / 2), gradient

    # A line search may try anything; e^10 is far beyond what the penalty lets win.
    bounds = [(-10, 10), (None, None)]
    found = minimize(objective, np.zeros(2), jac=True, method="L-BFGS-B", bounds=bounds)
    log_scale, bias = found.x
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

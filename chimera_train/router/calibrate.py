"""Turning a logit into a probability that means what it says (Platt 1999).

A network that ranks questions well may still be too sure of itself. Per model, a scale and a bias
of the logit are fitted to the success rates of the validation questions, and kept only if
cross-validation says that they help; otherwise the logit is left as it is.
"""

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

__all__ = ["fit_calibration"]

Array = npt.NDArray[np.float64]

IDENTITY = (1.0, 0.0)
_FOLDS = 5
# Weight of the pull towards the identity, in questions. It keeps the scale finite where the
# validation questions happen to be separable.
_PRIOR_QUESTIONS = 1.0


def fit_calibration(success: Array, logits: Array) -> tuple[Array, Array]:
    """Scale and bias of each model's logit, each of shape (n_models,); every scale is positive.

    Args:
        success: success rates of the validation questions, shape (n, n_models), NaN where unknown.
        logits: the router's logits on them, shape (n, n_models).
    """
    pairs = []
    for m in range(success.shape[1]):
        rows = ~np.isnan(success[:, m])
        pairs.append(_fit_if_better(success[rows, m], logits[rows, m]))
    scale, bias = np.array(pairs).T
    return scale, bias


def _fit_if_better(y: Array, logits: Array) -> tuple[float, float]:
    if len(y) < 2 * _FOLDS:
        return IDENTITY
    fold = np.arange(len(y)) % _FOLDS
    loss = 0.0
    for k in range(_FOLDS):
        scale, bias = _platt(y[fold != k], logits[fold != k])
        loss += _log_loss(y[fold == k], scale * logits[fold == k] + bias)
    return _platt(y, logits) if loss < _log_loss(y, logits) else IDENTITY


def _platt(y: Array, logits: Array) -> tuple[float, float]:
    def objective(parameters: Array) -> float:
        log_scale, bias = parameters  # the logarithm keeps the scale positive: no ranking changes
        penalty = _PRIOR_QUESTIONS * (log_scale**2 + bias**2) / 2
        return _log_loss(y, np.exp(log_scale) * logits + bias) + penalty

    # A line search may try anything; e^10 is far beyond what the penalty lets win.
    bounds = [(-10, 10), (None, None)]
    log_scale, bias = minimize(objective, np.zeros(2), method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(log_scale)), float(bias)


def _log_loss(y: Array, logits: Array) -> float:
    """Cross entropy of success rates under ``sigmoid(logits)``, summed over questions, in nats."""
    return float(np.sum(np.logaddexp(0.0, logits) - y * logits))

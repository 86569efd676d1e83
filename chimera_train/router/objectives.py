"""What the training of a router minimises.

Of a batch, y are the success rates of questions q on models i, w the samples behind each rate (0:
never graded), s the logits and p = sigmoid(s). Sums run over graded pairs of question and model.

``bce``, as published (Chimera §3.3), the cross entropy of rates:

    L = Σ w · CE(y, p) / Σ w,   CE(y, p) = −y·log p − (1 − y)·log(1 − p)

Most of it is won by knowing which questions are hard for every model, which moves no question to
another model. The other two make more of what routing needs, the differences between models.

``bce+rank`` adds, over the pairs of models i, j whose outcomes on a question differ, a logistic
loss of which did better (RankNet, weighted by how much better):

    L + Σ v · log(1 + exp(−sign(y_i − y_j)·(s_i − s_j))) / Σ v,   v = |y_i − y_j| · min(w_i, w_j)

What lifts all models of a question alike leaves the added term as it is. Where models fail
independently of each other on questions of one kind, the logits of the true chances minimise both
terms, so that probabilities stay what they are.

``uplift`` splits success into the mean over a question's models and each model's difference from
it, and counts errors of the differences twice: near one half CE(y, p) is 2·(y − p)² plus a
constant, and here the factor is 4.

    Σ_q w_q · CE(ȳ, p̄) / Σ_q w_q + 4 · Σ w · ((y − ȳ) − (p − p̄))² / Σ w,   w_q = Σ_i w
"""

from typing import get_args

import torch
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits, softplus

from chimera_train.router.settings import Objective

__all__ = ["OBJECTIVES", "objective_loss"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

_UPLIFT_FACTOR = 4.0


def objective_loss(
    objective: Objective, logits: torch.Tensor, rates: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The loss of a batch.

    Args:
        objective: which loss.
        logits: shape (n, n_models).
        rates: success rates, shape (n, n_models), any finite number where never graded.
        weights: samples behind each rate, shape (n, n_models); 0 where never graded.
    """
    if objective == "uplift":
        return _uplift(logits, rates, weights)
    loss = _mean(binary_cross_entropy_with_logits(logits, rates, reduction="none"), weights)
    return loss + _rank(logits, rates, weights) if objective == "bce+rank" else loss


def _rank(logits: torch.Tensor, rates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    i, j = torch.triu_indices(logits.shape[1], logits.shape[1], 1, device=logits.device)
    better = rates[:, i] - rates[:, j]
    pair_weights = better.abs() * torch.minimum(weights[:, i], weights[:, j])
    return _mean(softplus(-better.sign() * (logits[:, i] - logits[:, j])), pair_weights)


def _uplift(logits: torch.Tensor, rates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    probabilities = logits.sigmoid()
    per_question = weights.sum(1, keepdim=True)
    shares = weights / per_question.clamp(min=1e-9)
    level = (shares * probabilities).sum(1, keepdim=True)
    true_level = (shares * rates).sum(1, keepdim=True)
    errors = (rates - true_level) - (probabilities - level)
    of_level = binary_cross_entropy(level.clamp(0, 1), true_level.clamp(0, 1), reduction="none")
    return _mean(of_level, per_question) + _UPLIFT_FACTOR * _mean(errors**2, weights)


def _mean(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted mean; 0 where no weight is left."""
    return (weights * values).sum() / weights.sum().clamp(min=1e-9)

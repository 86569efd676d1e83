import numpy as np
import pytest
import torch
from scipy.special import expit

from chimera_train.router.objectives import OBJECTIVES, objective_loss
from chimera_train.router.settings import Objective

LOGITS = np.array([[0.3, -2.0, 0.7], [1.5, 0.1, -0.4]])
RATES = np.array([[1.0, 0.25, 0.0], [0.5, 0.0, 1.0]])
WEIGHTS = np.array([[1.0, 4.0, 2.0], [2.0, 0.0, 1.0]])
GRADED = WEIGHTS > 0
P = expit(LOGITS)


def _loss(
    objective: Objective, logits: np.ndarray, rates: np.ndarray, weights: np.ndarray
) -> float:
    tensors = (torch.tensor(array) for array in (logits, rates, weights))
    return objective_loss(objective, *tensors).item()


def _entropy(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    return -y * np.log(p) - (1 - y) * np.log(1 - p)


BCE = np.average(_entropy(RATES, P), weights=WEIGHTS)


def test_bce_is_the_cross_entropy_of_graded_pairs_by_their_samples() -> None:
    assert _loss("bce", LOGITS, RATES, WEIGHTS) == pytest.approx(BCE)


def test_rank_adds_which_of_two_models_did_better() -> None:
    # question, better model, worse model, how much better times samples behind the lesser known
    pairs = [(0, 0, 1, 0.75 * 1), (0, 0, 2, 1.0 * 1), (0, 1, 2, 0.25 * 2), (1, 2, 0, 0.5 * 1)]
    losses = [np.log1p(np.exp(LOGITS[q, j] - LOGITS[q, i])) for q, i, j, _ in pairs]
    expected = BCE + np.average(losses, weights=[weight for *_, weight in pairs])
    assert _loss("bce+rank", LOGITS, RATES, WEIGHTS) == pytest.approx(expected)


def test_uplift_counts_the_errors_of_differences_twice() -> None:
    of_level, of_differences = [], []
    for p, y, w in zip(P, RATES, WEIGHTS, strict=True):
        level, true_level = np.average(p, weights=w), np.average(y, weights=w)
        of_level.append(_entropy(true_level, level))
        of_differences.append(((y - true_level) - (p - level)) ** 2)
    expected = np.average(of_level, weights=WEIGHTS.sum(1))
    expected += 4 * np.average(of_differences, weights=WEIGHTS)
    assert _loss("uplift", LOGITS, RATES, WEIGHTS) == pytest.approx(expected)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_was_never_graded_does_not_matter(objective: Objective) -> None:
    expected = _loss(objective, LOGITS, RATES, WEIGHTS)
    for value in (0.0, 0.3, 1.0):
        assert _loss(objective, LOGITS, np.where(GRADED, RATES, value), WEIGHTS) == expected
    logits = torch.tensor(LOGITS, requires_grad=True)
    objective_loss(objective, logits, torch.tensor(RATES), torch.zeros(2, 3)).backward()
    assert not logits.grad.any()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_true_chances_minimise_it(objective: Objective) -> None:
    """Models that fail independently: all outcomes of one question, each as often as it occurs."""
    chances = np.array([0.9, 0.6, 0.2])
    outcomes = np.array([[i, j, k] for i in (0.0, 1) for j in (0.0, 1) for k in (0.0, 1)])
    often = np.prod(np.where(outcomes == 1, chances, 1 - chances), axis=1)
    weights = torch.tensor(np.repeat(often[:, None], 3, axis=1))
    true = torch.tensor(np.log(chances / (1 - chances)))
    logits = true.expand(8, 3).clone().requires_grad_()
    objective_loss(objective, logits, torch.tensor(outcomes), weights).backward()
    torch.testing.assert_close(logits.grad.sum(0), torch.zeros(3, dtype=torch.float64))

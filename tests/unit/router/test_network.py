import numpy as np
import pytest

from chimera_train.router.network import _agreement

FULL = np.array([[0.5, 0.6], [0.5, 0.9]])
# From half of the price difference on another model is chosen: 0.1 and 0.4 are the switching ones.
COST = np.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("eight_bits", "cost", "expected"),
    [
        (FULL, COST, 1.0),
        (FULL + 0.3, COST, 1.0),  # what moves all models alike moves no choice
        # At prices 0.05 and 0.25 (between the switching prices) and 0.6 beyond them: the first
        # question goes to the cheap model at 0.05 already.
        (np.array([[0.5, 0.5], [0.5, 0.9]]), COST, 1 - 1 / 6),
        (np.array([[0.5, 0.4], [0.5, 0.9]]), np.array([np.nan, 1.0]), 0.5),
    ],
)
def test_agreement_is_the_share_of_equal_choices(
    eight_bits: np.ndarray, cost: np.ndarray, expected: float
) -> None:
    assert _agreement(FULL, eight_bits, cost) == pytest.approx(expected)

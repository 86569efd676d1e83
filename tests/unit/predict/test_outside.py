"""How far requests lie outside the training data."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from chimera_train.history import History
from chimera_train.predict.features import StageRequest
from chimera_train.predict.outside import Bounds, counts

INSIDE = StageRequest("math", "solve", "", 5, 20, 40, History(("plan",), 60))
BOUNDS = Bounds(least=[5, 9, 19, 0], most=[5, 99, 199, 399], spread=0.5, novelty=0.2)
NOTHING = np.zeros(1)


def outside(request: StageRequest, spread: float = 0, novelty: float = 0) -> float:
    return float(BOUNDS.outside([request], np.array([spread]), np.array([novelty]))[0])


def test_counts_are_those_of_the_prompt_and_its_history() -> None:
    np.testing.assert_array_equal(counts([INSIDE]), [[5, 20, 40, 60]])
    assert counts([]).shape == (0, 4)


def test_nothing_is_outside_up_to_the_bounds() -> None:
    assert outside(INSIDE) == 0
    assert outside(replace(INSIDE, user_tokens=99, prompt_tokens=199), 0.5, 0.2) == 0
    assert outside(replace(INSIDE, user_tokens=9, prompt_tokens=19, history=History())) == 0


@pytest.mark.parametrize(
    ("change", "spread", "novelty", "expected"),
    [
        ({"user_tokens": 199}, 0, 0, 1 / 2),  # counts are compared plus one
        ({"user_tokens": 4}, 0, 0, 1 / 2),
        ({"prompt_tokens": 599}, 0, 0, 2 / 3),
        ({"system_tokens": 11}, 0, 0, 1 / 2),
        ({"history": History(("plan",), 1599)}, 0, 0, 3 / 4),
        ({}, 1.0, 0, 1 / 2),
        ({}, 0, 0.4, 1 / 2),
        ({"user_tokens": 199}, 2.0, 0.4, 3 / 4),  # the bound exceeded by most
    ],
)
def test_at_twice_a_bound_a_request_is_half_outside(
    change: dict, spread: float, novelty: float, expected: float
) -> None:
    assert outside(replace(INSIDE, **change), spread, novelty) == pytest.approx(expected)


def test_beyond_a_bound_of_zero_everything_is_outside() -> None:
    bounds = BOUNDS.model_copy(update={"spread": 0.0, "novelty": 0.0})
    novelty = np.array([0.0, 1e-9])
    assert bounds.outside([INSIDE] * 2, np.zeros(2), novelty).tolist() == [0, 1]


@given(*[st.integers(0, 10**7)] * 4, *[st.floats(0, 1e6)] * 2)
def test_it_is_a_share(
    system: int, user: int, prompt: int, generated: int, spread: float, novelty: float
) -> None:
    request = StageRequest("", "", "", system, user, prompt, History((), generated))
    assert 0 <= outside(request, spread, novelty) <= 1


@pytest.mark.parametrize(
    "change", [{"least": [0]}, {"most": [0] * 5}, {"spread": -1}, {"novelty": float("inf")}]
)
def test_refuses_other_bounds(change: dict) -> None:
    with pytest.raises(ValidationError):
        Bounds(**{**BOUNDS.model_dump(), **change})

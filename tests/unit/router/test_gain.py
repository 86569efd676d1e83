import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from chimera_train.router.gain import (
    pair_gains,
    prices,
    resampled_gain,
    routed,
    routing_curves,
    routing_gain,
)

COST = np.array([1.0, 3.0])
# The dear model solves what the cheap one solves, and the last two questions besides.
SUCCESS = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])


def test_the_truth_is_worth_all_and_its_opposite_less_than_nothing() -> None:
    assert routing_gain(SUCCESS, SUCCESS, COST) == pytest.approx(1.0)
    gain = routing_gain(SUCCESS, 1 - SUCCESS, COST)
    assert gain is not None
    assert gain < 0


def test_area_of_a_case_worked_by_hand() -> None:
    # One question goes to the dear model for half the difference in cost: cheap solves the first,
    # dear both. Mixing: 0.5 → 1 in a line over [1, 3], mean 0.75. Oracle: 1 from cost 2 on, mean
    # (0.75 + 1) / 2. A router that prefers the dear model on both, on the wrong one first: 0.5
    # up to cost 2, then the line to 1, mean (0.5 + 0.75) / 2.
    success = np.array([[1.0, 1.0], [0.0, 1.0]])
    confidence = np.array([[0.1, 0.9], [0.4, 0.6]])
    gain = routing_gain(success, confidence, COST)
    assert gain == pytest.approx((0.625 - 0.75) / (0.875 - 0.75), rel=0.02)


def test_a_mixture_beats_a_dear_bad_model() -> None:
    cost = np.array([1.0, 2.0, 3.0])
    success = np.column_stack([SUCCESS[:, 0], np.zeros(5), SUCCESS[:, 1]])
    two = routing_gain(SUCCESS, SUCCESS, COST)
    three = routing_gain(success, success, cost)
    assert two == pytest.approx(three)


@pytest.mark.parametrize(
    ("success", "cost"),
    [
        (SUCCESS, np.array([1.0, np.nan])),
        (SUCCESS, np.array([3.0, 1.0])),  # the cheapest is the most accurate
        (np.where(SUCCESS[:, :1] == np.array([1.0, 0.0]), np.nan, SUCCESS), COST),
        (np.ones((4, 2)), COST),
    ],
    ids=["cost unknown", "nothing to trade", "no common question", "no difference"],
)
def test_none_where_there_is_nothing_to_trade(success: np.ndarray, cost: np.ndarray) -> None:
    assert routing_gain(success, np.full_like(success, 0.5), cost) is None


def test_levels_are_points_of_the_curves() -> None:
    success = np.array([[1.0, 1.0], [0.0, 1.0]])
    curves = routing_curves(success, success, COST)
    assert curves is not None
    assert curves.at(0.25) == pytest.approx(
        {"cost": 1.5, "routed": 0.75, "mixed": 0.625, "oracle": 0.75}
    )
    assert curves.at(1.0) == pytest.approx({"cost": 3, "routed": 1, "mixed": 1, "oracle": 1})


def test_a_resample_counts_questions_as_often() -> None:
    rng = np.random.default_rng(0)
    success, confidence = rng.random((30, 3)).round(1), rng.random((30, 3))
    success[:, 2] += 0.3
    success[3, 1] = np.nan
    cost = np.array([1.0, 2.0, 5.0])
    counts = np.vstack([np.ones(30), np.arange(30) % 3])
    found = resampled_gain(success, confidence, cost, counts)
    assert found[0] == pytest.approx(routing_gain(success, confidence, cost))
    # Prices, and the models that are mixed, are those of all questions.
    repeated = np.repeat(np.arange(30), counts[1].astype(int))
    assert found[1] == pytest.approx(
        routing_gain(success[repeated], confidence[repeated], cost), abs=0.05
    )
    assert np.isnan(resampled_gain(success, confidence, cost[::-1] * np.nan, counts)).all()


def test_every_pair_with_something_to_trade_from_cheap_to_dear() -> None:
    success = np.column_stack([SUCCESS[:, 1], SUCCESS[:, 0], np.zeros(5)])
    cost, counts = np.array([3.0, 1.0, 2.0]), np.ones((4, 5))
    pairs = pair_gains(("dear", "cheap", "useless"), success, success, cost, counts)
    # Nothing is to be traded between cheap and useless, which costs more and solves less.
    found = [(pair["cheap"], pair["dear"]) for pair in pairs]
    assert found == [("cheap", "dear"), ("useless", "dear")]
    assert [pair["gain"] for pair in pairs] == pytest.approx([1, 1])
    assert [pair["ci"] for pair in pairs] == [pytest.approx([1, 1])] * 2


def test_choices_are_those_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    scores, cost = rng.random((20, 4)), rng.random(4)
    at = prices(scores, cost)
    assert (np.diff(at) < 0).all()
    expected = np.argmax(scores[None] - at[:, None, None] * cost, axis=2)
    np.testing.assert_array_equal(routed(scores, cost, at), expected)
    assert (routed(scores, cost, at)[0] == cost.argmin()).all()


@given(
    hnp.arrays(float, (12, 3), elements=st.sampled_from([0.0, 0.5, 1.0])),
    hnp.arrays(float, (12, 3), elements=st.floats(0, 1)),
    hnp.arrays(float, 3, elements=st.floats(0.5, 10)),
)
def test_nothing_beats_the_oracle(
    success: np.ndarray, confidence: np.ndarray, cost: np.ndarray
) -> None:
    gain = routing_gain(success, confidence, cost)
    assert gain is None or gain <= 1 + 1e-9

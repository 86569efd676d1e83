from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau
from sklearn.metrics import mean_pinball_loss

from chimera_train.length.metrics import (
    bootstrap_interval,
    cell_distance,
    coverage,
    fold_distance,
    kendall_distance,
    pinball_loss,
    resampled_interval,
)


@given(st.permutations(range(9)))
def test_without_ties_it_is_the_share_of_inverted_pairs(order: list[int]) -> None:
    inverted = [a > b for a, b in combinations(order, 2)]
    distance = kendall_distance(np.arange(9.0), np.array(order, dtype=float))
    assert distance == pytest.approx(np.mean(inverted))


small = st.lists(st.integers(0, 3), min_size=2, max_size=12)


@given(small, st.randoms())
def test_ties_are_corrected_for(values: list[int], random: np.random.Generator) -> None:
    x = np.array(values, dtype=float)
    y = np.array(random.sample(values, len(values)), dtype=float)
    pairs = list(combinations(range(len(x)), 2))
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in pairs]
    untied_x, untied_y = sum(a != 0 for a, _ in signs), sum(b != 0 for _, b in signs)
    if untied_x == 0 or untied_y == 0:
        expected = 0.5
    else:
        expected = (1 - sum(a * b for a, b in signs) / np.sqrt(untied_x * untied_y)) / 2
    assert kendall_distance(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("n", [2, 7, 1000, 5001])
def test_it_is_scipys(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.lognormal(3, 1, n).round()
    y = (x * rng.lognormal(0, 1, n)).round()
    before = x.copy(), y.copy()
    assert kendall_distance(x, y) == pytest.approx((1 - kendalltau(x, y).statistic) / 2, abs=1e-12)
    np.testing.assert_array_equal((x, y), before)


@pytest.mark.parametrize(
    ("truth", "predicted"), [([1, 2, 3], [7, 7, 7]), ([4, 4], [1, 2]), ([1], [1]), ([], [])]
)
def test_nothing_ordered_is_chance(truth: list[float], predicted: list[float]) -> None:
    assert kendall_distance(np.array(truth), np.array(predicted)) == 0.5


def test_folds_are_compared_within() -> None:
    folds = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    truth = np.array([1.0, 2, 3, 1, 2, 3, 5, 5])
    predicted = np.array([1.0, 2, 3, 30, 20, 10, 1, 2])  # right, reversed, nothing to order
    assert fold_distance(truth, predicted, folds) == pytest.approx(0.5)
    assert fold_distance(truth[:3], predicted[:3], folds[:3]) == 0
    assert fold_distance(truth[6:], predicted[6:], folds[6:]) == 0.5


def test_cells_are_weighted_by_rows_and_those_without_an_order_left_out() -> None:
    cells = np.array([4, 4, 4, 9, 9, 2, 2])
    truth = np.array([1.0, 2, 3, 1, 2, 5, 5])
    predicted = np.array([1.0, 2, 3, 20, 10, 1, 2])
    assert cell_distance(truth, predicted, cells) == pytest.approx(2 / 5)
    assert cell_distance(truth[5:], predicted[5:], cells[5:]) == 0.5


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_pinball_is_scikit_learns(pairs: list[tuple[int, int]], quantile: float) -> None:
    truth, predicted = np.array(pairs, dtype=float).T
    expected = mean_pinball_loss(truth, predicted, alpha=quantile)
    assert pinball_loss(truth, predicted, quantile) == pytest.approx(expected)


def test_coverage_counts_lengths_up_to_the_quantile() -> None:
    assert coverage(np.array([1.0, 2, 3, 4]), np.array([2.0, 2, 2, 2])) == 0.5


def noisy(programs: int, stages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Predictions whose error is shared by all stages of a program."""
    rng = np.random.default_rng(0)
    program = np.repeat(np.arange(programs), stages)
    truth = rng.normal(size=programs)[program]
    predicted = truth + rng.normal(size=programs)[program]
    return truth, predicted, program % 5, program.astype(str)


def test_the_interval_holds_the_figure_and_narrows_with_programs() -> None:
    widths = []
    for programs in (50, 800):
        truth, predicted, folds, names = noisy(programs, 1)
        low, high = bootstrap_interval(truth, predicted, folds, names, np.random.default_rng(1))
        assert low < fold_distance(truth, predicted, folds) < high
        widths.append(high - low)
    assert 2 < widths[0] / widths[1] < 8  # 4 for independent programs


def test_stages_of_a_program_are_no_independent_evidence() -> None:
    widths = []
    for stages in (1, 4):
        case = noisy(200, stages)
        low, high = bootstrap_interval(*case, np.random.default_rng(1))
        widths.append(high - low)
    assert widths[1] == pytest.approx(widths[0], rel=0.05)


def test_of_many_programs_a_part_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, predicted, folds, names = noisy(2000, 2)
    drawn = []

    def statistic(rows: np.ndarray) -> float:
        drawn.append(len(rows))
        return fold_distance(truth[rows], predicted[rows], folds[rows])

    whole = resampled_interval(statistic, folds, names, np.random.default_rng(1))
    assert set(drawn) == {4000}
    drawn.clear()
    monkeypatch.setattr("chimera_train.length.metrics._MOST_PROGRAMS", 500)
    part = resampled_interval(statistic, folds, names, np.random.default_rng(1))
    assert set(drawn[:-1]) == {1000}
    assert part == pytest.approx(whole, abs=0.004)
    assert part[1] - part[0] == pytest.approx(whole[1] - whole[0], rel=0.25)

"""Folds: a property of the question alone, even and stable."""

import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.traces.split import N_FOLDS, fold, folds


@given(st.text())
def test_a_fold_is_one_of_five_and_always_the_same(question_id: str) -> None:
    assert 0 <= fold(question_id) < N_FOLDS
    assert fold(question_id) == fold(question_id)


def test_folds_stay_what_they_were() -> None:
    """Another hash would move questions from the holdout into training data."""
    assert [fold(f"arithmetic-1-{i}") for i in range(8)] == [1, 2, 3, 2, 4, 0, 2, 4]


def test_folds_are_even() -> None:
    counts = folds(pd.Series([f"q{i}" for i in range(5000)]))
    shares = pd.Series(counts).value_counts(normalize=True)
    assert len(shares) == N_FOLDS
    # Binomial: five standard deviations of a share of 0.2 among 5,000.
    assert (shares - 0.2).abs().max() < 5 * (0.2 * 0.8 / 5000) ** 0.5


def test_folds_are_those_of_each_row() -> None:
    ids = ["b", "a", "b", "c"]
    assert list(folds(pd.Series(ids))) == [fold(question_id) for question_id in ids]

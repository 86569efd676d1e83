from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from chimera_train.length.boosted import LEVELS, BoostedSettings, boosted_arrays, fit_boosters

QUICK = BoostedSettings(n_rounds=40, learning_rate=0.1)


def rows(n: int, seed: int = 0) -> tuple[Any, Any]:
    """Lengths around e^(2 + x) that scatter more the larger the second column."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 4)).astype(np.float32)
    return X, 2.0 + X[:, 0] + X[:, 1] * rng.normal(size=n)


def test_the_result_is_the_same_with_any_number_of_threads() -> None:
    X, y = rows(500)
    one, again, many = (
        {level: b.model_to_string() for level, b in fit_boosters(X, y, QUICK, **how).items()}
        for how in ({"seed": 0, "n_jobs": 1}, {"seed": 0, "n_jobs": 1}, {"seed": 0, "n_jobs": 4})
    )
    assert list(one) == list(LEVELS)
    assert one == again == many


def test_quantiles_are_those_of_unseen_targets() -> None:
    X, y = rows(3000)
    arrays = boosted_arrays(fit_boosters(X, y, QUICK, seed=0, n_jobs=1), y)
    new_X, new_y = rows(3000, seed=1)
    quantiles = arrays.quantiles(new_X, LEVELS)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    shares = (new_y[:, None] <= quantiles).mean(axis=0)
    np.testing.assert_allclose(shares, LEVELS, atol=0.05)
    exact = 2.0 + new_X[:, 0]
    assert np.abs(quantiles[:, 3] - exact).mean() < 0.3 * np.abs(exact - y.mean()).mean() + 0.05


def test_leaves_far_from_the_median_are_larger() -> None:
    X, y = rows(1000)
    boosters = fit_boosters(X, y, BoostedSettings(n_rounds=1, max_leaves=1024), seed=0, n_jobs=1)
    leaves = {
        level: booster.dump_model()["tree_info"][0]["num_leaves"]
        for level, booster in boosters.items()
    }
    assert leaves[0.05] < leaves[0.1] < leaves[0.25] < leaves[0.5]
    assert leaves[0.5] > leaves[0.75] > leaves[0.9] > leaves[0.95]


def test_rows_unlike_the_training_rows_have_more_spread() -> None:
    X, _ = rows(2000)
    X[:, 0] = np.random.default_rng(2).normal(size=len(X))
    y = np.exp(X[:, 0].astype(np.float64))
    arrays = boosted_arrays(fit_boosters(X, y, QUICK, seed=0, n_jobs=1), y)
    unlike = X.copy()
    unlike[:, 0] = 6.0
    assert arrays.spread(unlike).min() > np.quantile(arrays.spread(X), 0.9)


@pytest.mark.parametrize("n", [1, 2, 30])
def test_few_rows_or_constant_targets_give_constants(n: int) -> None:
    X, _ = rows(n)
    y = np.full(n, 3.5)
    arrays = boosted_arrays(fit_boosters(X, y, QUICK, seed=0, n_jobs=1), y)
    np.testing.assert_array_equal(arrays.quantiles(X, [0.0, 0.5, 1.0]), np.full((n, 3), 3.5))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_rounds": 0},
        {"max_leaves": 1},
        {"learning_rate": 0},
        {"learning_rate": 1.5},
        {"min_samples_leaf": 0},
        {"rounds": 5},
    ],
)
def test_refuses_settings_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        BoostedSettings(**wrong)

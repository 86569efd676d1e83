from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.errors import DataError
from chimera_train.length.forests import forest_arrays
from chimera_train.predict.forest import ForestArrays

QUANTILES = [0.0, 0.03, 0.1, 0.5, 0.77, 0.9, 1.0]


def fit(
    seed: int, n: int, levels: int, min_samples_leaf: int, max_samples_leaf: int | None
) -> tuple[RandomForestQuantileRegressor, Any]:
    """A forest on integer targets with ties, and rows to predict, some exactly on thresholds."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 12, size=(n, 3)).astype(np.float32)
    X[:, 2] = rng.normal(size=n)
    y = np.floor(X[:, 0] * rng.exponential(size=n) * levels / 12)
    forest = RandomForestQuantileRegressor(
        n_estimators=6,
        min_samples_leaf=min_samples_leaf,
        max_samples_leaf=max_samples_leaf,
        max_features=0.5,
        random_state=seed,
    ).fit(X, y)
    new = rng.normal(scale=6, size=(40, 3)).astype(np.float32)
    return forest, np.vstack([new, _rows_at_thresholds(forest)])


def _rows_at_thresholds(forest: RandomForestQuantileRegressor) -> Any:
    """Rows of the float32 numbers next to thresholds, where rounding would show."""
    tree = forest.estimators_[0].tree_
    thresholds = tree.threshold[tree.children_left != -1][:20].astype(np.float32)
    around = [
        thresholds,
        np.nextafter(thresholds, np.float32(np.inf)),
        np.nextafter(thresholds, np.float32(-np.inf)),
    ]
    return np.repeat(np.concatenate(around)[:, None], 3, axis=1)


arguments = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "n": st.integers(2, 150),
        "levels": st.sampled_from([0, 1, 5, 1000]),  # 0: constant targets
        "min_samples_leaf": st.integers(1, 12),
        "max_samples_leaf": st.sampled_from([None, 2, 8]),
    }
)


@given(arguments)
@settings(deadline=None, max_examples=25)
def test_equals_quantile_forest(case: dict[str, Any]) -> None:
    forest, X = fit(**case)
    expected = forest.predict(X, quantiles=QUANTILES)
    actual = forest_arrays(forest).quantiles(X, QUANTILES)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-9)


def pools(forest: RandomForestQuantileRegressor, X: Any) -> list[Any]:
    """The targets in each row's leaves, straight from the library's tables."""
    targets = np.asarray(forest.forest_.y_train)[0]
    leaves = np.asarray(forest.forest_.y_train_leaves)[:, :, 0, :]
    result = []
    for nodes in forest.apply(X):
        indices = np.concatenate([leaves[tree, node] for tree, node in enumerate(nodes)])
        result.append(targets[indices[indices > 0] - 1])
    return result


@given(arguments, st.floats(0, 1.2))
@settings(deadline=None, max_examples=25)
def test_conditions_on_the_bound(case: dict[str, Any], share: float) -> None:
    forest, X = fit(**case)
    targets = np.asarray(forest.forest_.y_train)[0]
    bound = np.floor(share * targets.max())
    actual = forest_arrays(forest).quantiles_above(X, QUANTILES, np.full(len(X), bound))
    for row, pool in zip(actual, pools(forest, X), strict=True):
        rest = pool[pool > bound]
        if not rest.size:
            rest = targets[targets > bound]  # all training rows stand in
        expected = np.quantile(rest, QUANTILES) if rest.size else np.full(len(QUANTILES), np.nan)
        np.testing.assert_allclose(row, expected, rtol=1e-12, atol=1e-9)


def test_spread_is_that_of_the_trees_means() -> None:
    forest, X = fit(3, 80, 100, 4, None)
    leaves = np.asarray(forest.forest_.y_train_leaves)[:, :, 0, :]
    targets = np.asarray(forest.forest_.y_train)[0]
    expected = []
    for nodes in forest.apply(X):
        drawn = [leaves[tree, node] for tree, node in enumerate(nodes)]
        expected.append(np.std([targets[i[i > 0] - 1].mean() for i in drawn]))
    np.testing.assert_allclose(forest_arrays(forest).spread(X), expected, rtol=1e-6)
    assert forest_arrays(forest).spread(X[:0]).shape == (0,)


def test_no_rows_give_no_predictions() -> None:
    forest, X = fit(0, 50, 5, 1, None)
    assert forest_arrays(forest).quantiles(X[:0], [0.5, 0.9]).shape == (0, 2)


@pytest.mark.parametrize("quantile", [-0.1, 1.1, float("nan")])
def test_refuses_other_quantiles(quantile: float) -> None:
    forest, X = fit(0, 50, 5, 1, None)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        forest_arrays(forest).quantiles(X, [quantile])


@pytest.fixture
def arrays() -> ForestArrays:
    return forest_arrays(fit(1, 60, 100, 3, None)[0])


def test_survives_a_round_trip(arrays: ForestArrays, tmp_path: Path) -> None:
    arrays.save(tmp_path / "a.npz")
    arrays.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = ForestArrays.load(tmp_path / "a.npz")
    for field in fields(ForestArrays):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(arrays, field.name))


def changed(array: Any, index: int, value: float) -> Any:
    result = array.copy()
    result[index] = value
    return result


@pytest.mark.parametrize(
    "damage",
    [
        lambda a: {"left": changed(a.left, 0, 0)},  # would never end
        lambda a: {"right": changed(a.right, 0, len(a.right))},
        lambda a: {"roots": changed(a.roots, 0, -1)},
        lambda a: {"roots": a.roots[:0]},
        lambda a: {"leaf_ranks": changed(a.leaf_ranks, 0, len(a.values))},
        lambda a: {"leaf_ranks": a.leaf_ranks[:-1]},
        lambda a: {"leaf_start": changed(a.leaf_start, 5, 10**6)},
        lambda a: {"threshold": a.threshold[:-1]},
        lambda a: {"values": changed(a.values, 0, np.nan)},
        lambda a: {"values": a.values[:, None]},
        lambda a: {"feature": changed(a.feature, 0, -1)},  # a leaf without targets
    ],
)
def test_refuses_arrays_that_contradict_each_other(arrays: ForestArrays, damage: Any) -> None:
    with pytest.raises(DataError, match="contradict"):
        replace(arrays, **damage(arrays))


def test_refuses_damaged_files(arrays: ForestArrays, tmp_path: Path) -> None:
    path = tmp_path / "forest.npz"
    with pytest.raises(DataError, match="does not exist"):
        ForestArrays.load(path)
    arrays.save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="not a readable array file"):
        ForestArrays.load(path)
    columns = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    np.savez(path, **{**columns, "values": arrays.values.astype(np.int64)})
    with pytest.raises(DataError, match="'values' has type int64"):
        ForestArrays.load(path)
    np.savez(path, **{**columns, "values": arrays.values.astype(object)})
    with pytest.raises(DataError, match="not a readable array file"):
        ForestArrays.load(path)
    columns.pop("values")
    np.savez(path, **columns)
    with pytest.raises(DataError, match="values"):
        ForestArrays.load(path)

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chimera_train.errors import DataError
from chimera_train.length.boosted import LEVELS, BoostedSettings, boosted_arrays, fit_boosters
from chimera_train.predict.boosted import BoostedArrays

QUANTILES = [0.0, 0.03, 0.05, 0.2, 0.5, 0.77, 0.95, 0.96, 0.99]


def fit(seed: int, n: int, levels: int, min_samples_leaf: int) -> tuple[dict[float, Any], Any, Any]:
    """Boosters on targets with ties, their targets, and rows, some exactly on thresholds."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 12, size=(n, 3)).astype(np.float32)
    X[:, 2] = rng.normal(size=n)
    y = np.floor(X[:, 0] * rng.exponential(size=n) * levels / 12)
    boosters = fit_boosters(
        X,
        y,
        BoostedSettings(
            n_rounds=12, max_leaves=6, learning_rate=0.3, min_samples_leaf=min_samples_leaf
        ),
        seed=seed,
        n_jobs=1,
    )
    thresholds = boosted_arrays(boosters, y).threshold.astype(np.float32)
    # LightGBM takes what is within 1e-35 of zero for zero, and has thresholds there.
    thresholds = thresholds[np.abs(thresholds) > 1e-30][:40]
    around = [
        thresholds,
        np.nextafter(thresholds, np.float32(np.inf)),
        np.nextafter(thresholds, np.float32(-np.inf)),
    ]
    at_thresholds = np.repeat(np.concatenate(around)[:, None], 3, axis=1)
    rows = [rng.normal(scale=6, size=(40, 3)), np.zeros((1, 3)), at_thresholds]
    return boosters, y, np.vstack(rows).astype(np.float32)


@given(
    st.integers(0, 10_000),
    st.integers(2, 150),
    st.sampled_from([0, 1, 5, 1000]),  # 0: constant targets
    st.integers(1, 12),
)
@settings(deadline=None, max_examples=25)
def test_equals_lightgbm(seed: int, n: int, levels: int, min_samples_leaf: int) -> None:
    boosters, y, X = fit(seed, n, levels, min_samples_leaf)
    expected = np.sort([boosters[level].predict(X) for level in LEVELS], axis=0).T
    arrays = boosted_arrays(boosters, y)
    np.testing.assert_allclose(arrays.quantiles(X, LEVELS), expected, rtol=0, atol=1e-9)
    assert arrays.min_features <= X.shape[1]


def distribution(
    scores: Sequence[float],
    targets: Sequence[float] = (),
    levels: Sequence[float] = (0.1, 0.5, 0.8, 0.9),
) -> BoostedArrays:
    """Trees of one leaf each: every row has the quantiles ``scores``, in whatever order."""
    values, counts = np.unique(targets or [1e6] * 1000, return_counts=True)
    return BoostedArrays(
        levels=np.array(levels),
        first_tree=np.arange(len(levels) + 1, dtype=np.int32),
        roots=~np.arange(len(levels), dtype=np.int32),
        feature=np.zeros(0, dtype=np.int32),
        threshold=np.zeros(0),
        left=np.zeros(0, dtype=np.int32),
        right=np.zeros(0, dtype=np.int32),
        leaf_value=np.array(scores, dtype=np.float64),
        leaf_rows=np.full(len(levels), counts.sum(), dtype=np.int32),
        values=values.astype(np.float64),
        value_rows=counts.astype(np.int32),
    )


ROW = np.zeros((1, 0), dtype=np.float32)


def above(arrays: BoostedArrays, bound: float, quantiles: Sequence[float] = QUANTILES) -> Any:
    return arrays.quantiles_above(ROW, quantiles, np.array([bound]))[0]


def test_between_levels_the_quantile_is_linear() -> None:
    arrays = distribution([10, 20, 40, 50])
    actual = arrays.quantiles(ROW, [0.1, 0.2, 0.5, 0.6, 0.9])[0]
    np.testing.assert_allclose(actual, [10, 12.5, 20, 20 + 20 / 3, 50])


def test_crossing_quantiles_are_sorted() -> None:
    crossing = distribution([20, 10, 50, 40])
    np.testing.assert_array_equal(
        crossing.quantiles(ROW, [0.1, 0.5, 0.8, 0.9])[0], [10, 20, 40, 50]
    )


def test_below_the_lowest_level_all_have_its_quantile() -> None:
    np.testing.assert_array_equal(
        distribution([10, 20, 40, 50]).quantiles(ROW, [0, 0.05])[0], [10, 10]
    )


def test_above_the_highest_level_the_excess_is_exponential() -> None:
    arrays = distribution([10, 20, 40, 50], [1] * 900 + [70] * 100)
    # Half of those above the quantile of 0.8 exceed it by 10, so half of the rest by another 10.
    np.testing.assert_allclose(arrays.quantiles(ROW, [0.95])[0], [60])
    np.testing.assert_allclose(arrays.quantiles(ROW, [0.99, 1])[0], [70, 70])  # the largest target


def test_no_quantile_is_below_what_the_trees_say() -> None:
    arrays = distribution([10, 20, 40, 50], [1, 2, 3])
    np.testing.assert_array_equal(arrays.quantiles(ROW, [0.9, 0.95, 1.0])[0], [50, 50, 50])


def _sampled(scores: Any, levels: Any, n: int = 400_000) -> Any:
    """Draws at ``n`` even shares, from the definition."""
    share = (np.arange(n) + 0.5) / n
    draws = np.interp(share, levels, scores)
    mean = (scores[-1] - scores[-2]) / np.log((1 - levels[-2]) / (1 - levels[-1]))
    beyond = share > levels[-1]
    draws[beyond] += mean * np.log((1 - levels[-1]) / (1 - share[beyond]))
    return draws


@given(st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13]), min_size=4, max_size=4), st.floats(-1, 16))
@settings(deadline=None, max_examples=40)
def test_conditions_on_the_bound(scores: list[float], bound: float) -> None:
    levels = [0.1, 0.5, 0.8, 0.9]
    draws = _sampled(np.sort(scores).astype(float), np.array(levels))
    rest = draws[draws > bound]
    assume(len(rest) > 4000)
    quantiles = [0.05, 0.3, 0.5, 0.75, 0.9]
    # A draw more or less moves a quantile across a jump, so each is met within a few shares.
    low, high = (
        np.quantile(rest, np.clip(np.array(quantiles) + shift, 0, 1)) for shift in (-1e-3, 1e-3)
    )
    actual = above(distribution(scores), bound, quantiles)
    assert (actual >= low - 1e-3).all()
    assert (actual <= high + 1e-3).all()
    assert (actual > bound).all()


def test_what_the_trees_cannot_know_comes_from_the_training_targets() -> None:
    targets = [1] * 50 + [55, 60, 300, 900]
    arrays = distribution([10, 20, 40, 50], targets)
    # One of 54 rows is expected above 50 + 10 · log2(5.4) = 74.3.
    assert above(arrays, 74, [0.5])[0] == pytest.approx(84)
    np.testing.assert_array_equal(above(arrays, 75, [0, 0.5, 1]), [300, 600, 900])
    np.testing.assert_array_equal(above(arrays, 300, [0.5]), [900])
    assert np.isnan(above(arrays, 900, [0.1, 0.5])).all()


def test_a_certain_length_that_is_outlived_says_nothing() -> None:
    arrays = distribution([8, 8, 8, 8], [8] * 97 + [20, 30, 40])
    np.testing.assert_array_equal(above(arrays, 7, [0, 0.5, 1]), [8, 8, 8])
    np.testing.assert_array_equal(above(arrays, 8, [0, 0.5, 1]), [20, 30, 40])
    assert np.isnan(above(arrays, 40, [0.5])).all()


def test_each_row_has_its_own_bound() -> None:
    boosters, y, X = fit(0, 120, 1000, 3)
    arrays = boosted_arrays(boosters, y)
    bounds = np.random.default_rng(0).uniform(-10, y.max() * 1.2, size=len(X))
    together = arrays.quantiles_above(X, QUANTILES, bounds)
    for row, bound, expected in zip(X, bounds, together, strict=True):
        alone = arrays.quantiles_above(row[None], QUANTILES, np.array([bound]))[0]
        np.testing.assert_array_equal(alone, expected)


def test_spread_is_the_rarity_of_the_leaves() -> None:
    boosters, y, X = fit(0, 120, 1000, 3)
    rarity = []
    for booster in boosters.values():
        trees = booster.trees_to_dataframe().query("left_child.isna()").groupby("tree_index")
        leaves = booster.predict(X, pred_leaf=True)
        for tree, rows in trees:
            by_leaf = rows["count"].set_axis(rows["node_index"].str.split("-L").str[1].astype(int))
            rarity.append(-np.log(by_leaf.loc[leaves[:, int(tree)]].to_numpy() / len(y)))
    actual = boosted_arrays(boosters, y).spread(X)
    np.testing.assert_allclose(actual, np.mean(rarity, axis=0), rtol=1e-12)


def test_what_nothing_splits_is_rare_nowhere() -> None:
    np.testing.assert_array_equal(distribution([10, 20, 40, 50]).spread(ROW), [0.0])


def test_threads_do_not_disturb_each_other() -> None:
    boosters, y, X = fit(0, 120, 1000, 3)
    arrays = boosted_arrays(boosters, y)
    rows = np.tile(X, (20, 1))
    expected = arrays.quantiles(rows, QUANTILES)
    with ThreadPoolExecutor(8) as pool:
        for actual in pool.map(lambda _: arrays.quantiles(rows, QUANTILES), range(16)):
            np.testing.assert_array_equal(actual, expected)


def test_no_rows_give_no_predictions() -> None:
    assert distribution([10, 20, 40, 50]).quantiles(ROW[:0], [0.5, 0.9]).shape == (0, 2)


@pytest.mark.parametrize("quantile", [-0.1, 1.1, float("nan")])
def test_refuses_other_quantiles(quantile: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        distribution([10, 20, 40, 50]).quantiles(ROW, [quantile])


@pytest.fixture(scope="module")
def arrays() -> BoostedArrays:
    boosters, y, _ = fit(1, 120, 100, 3)
    return boosted_arrays(boosters, y)


def test_survives_a_round_trip(arrays: BoostedArrays, tmp_path: Path) -> None:
    arrays.save(tmp_path / "a.npz")
    arrays.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = BoostedArrays.load(tmp_path / "a.npz")
    for field in fields(BoostedArrays):
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
        lambda a: {"right": changed(a.right, 0, ~len(a.leaf_value))},
        lambda a: {"roots": changed(a.roots, 0, len(a.feature))},
        lambda a: {"roots": a.roots[:-1]},
        lambda a: {"first_tree": changed(a.first_tree, 1, 0)},
        lambda a: {"first_tree": a.first_tree[:-1]},
        lambda a: {"levels": a.levels[::-1].copy()},
        lambda a: {"levels": changed(a.levels, -1, 1.0)},
        lambda a: {"levels": a.levels[:1], "first_tree": a.first_tree[[0, -1]]},  # no tail
        lambda a: {"feature": changed(a.feature, 0, -1)},
        lambda a: {"threshold": a.threshold[:-1]},
        lambda a: {"threshold": changed(a.threshold, 0, np.nan)},
        lambda a: {"leaf_value": changed(a.leaf_value, 0, np.inf)},
        lambda a: {"leaf_rows": changed(a.leaf_rows, 0, 0)},
        lambda a: {"leaf_rows": a.leaf_rows[:-1]},
        lambda a: {"values": a.values[::-1].copy()},
        lambda a: {"values": a.values[:, None]},
        lambda a: {"values": a.values[:0], "value_rows": a.value_rows[:0]},
        lambda a: {"value_rows": changed(a.value_rows, 0, 0)},
    ],
)
def test_refuses_arrays_that_contradict_each_other(arrays: BoostedArrays, damage: Any) -> None:
    with pytest.raises(DataError, match="contradict"):
        replace(arrays, **damage(arrays))


def test_refuses_damaged_files(arrays: BoostedArrays, tmp_path: Path) -> None:
    path = tmp_path / "boosted.npz"
    with pytest.raises(DataError, match="does not exist"):
        BoostedArrays.load(path)
    columns = {field.name: getattr(arrays, field.name) for field in fields(arrays)}
    np.savez(path, **{**columns, "leaf_value": arrays.leaf_value.astype(np.float32)})
    with pytest.raises(DataError, match="'leaf_value' has type float32"):
        BoostedArrays.load(path)
    np.savez(path, **{**columns, "roots": arrays.roots[:-1]})
    with pytest.raises(DataError, match=r"boosted\.npz: .* contradict"):
        BoostedArrays.load(path)
    columns.pop("values")
    np.savez(path, **columns)
    with pytest.raises(DataError, match="values"):
        BoostedArrays.load(path)

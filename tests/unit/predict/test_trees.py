from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.predict.trees import TreeSums
from chimera_train.tree_export import flat_trees


def boosters() -> tuple[list[lightgbm.Booster], Any]:
    """One that splits, and one that has nothing to split."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype(np.float32)
    parameters = {"objective": "cross_entropy", "num_leaves": 4, "verbosity": -1, "num_threads": 1}
    targets = (1 / (1 + np.exp(-X[:, 0])), np.full(200, 0.75))
    return [
        lightgbm.train(parameters, lightgbm.Dataset(X, y), num_boost_round=5) for y in targets
    ], X


@pytest.fixture(scope="module")
def trees() -> TreeSums:
    return flat_trees(boosters()[0], 200)[0]


def test_sums_are_those_of_lightgbm(trees: TreeSums) -> None:
    of, X = boosters()
    expected = np.column_stack([booster.predict(X, raw_score=True) for booster in of])
    np.testing.assert_allclose(trees.sums(X), expected, atol=1e-12)
    np.testing.assert_allclose(trees.sums(X)[:, 1], np.log(3))
    assert (trees.n_sums, trees.min_features <= 3) == (2, True)
    assert trees.sums(X[:0]).shape == (0, 2)


def test_survive_a_round_trip(trees: TreeSums, tmp_path: Path) -> None:
    trees.save(tmp_path / "trees.npz")
    loaded = TreeSums.load(tmp_path / "trees.npz")
    for field in fields(TreeSums):
        np.testing.assert_array_equal(getattr(loaded, field.name), getattr(trees, field.name))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {"left": np.zeros_like(t.left)},  # would never end
        lambda t: {"right": t.right + 10_000},
        lambda t: {"first_tree": t.first_tree[:1]},
        lambda t: {"leaf_value": np.full_like(t.leaf_value, np.nan)},
        lambda t: {"threshold": t.threshold[:, None]},
    ],
)
def test_what_could_read_out_of_bounds_is_refused(trees: TreeSums, change: Any) -> None:
    with pytest.raises(DataError, match="contradict"):
        replace(trees, **change(trees))

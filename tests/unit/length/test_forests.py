import numpy as np

from chimera_train.length.forests import fit_forest
from chimera_train.length.settings import LengthSettings


def test_a_leaf_that_nothing_splits_stays_bounded(quick: LengthSettings) -> None:
    forest = fit_forest(np.zeros((400, 3), dtype=np.float32), np.full(400, 5.0), quick, 10_000)
    leaves = np.asarray(forest.forest_.y_train_leaves)
    assert leaves.shape == (quick.n_estimators, 1, 1, 4 * quick.min_samples_leaf)


def test_a_tree_is_grown_from_no_more_rows_than_asked_for(quick: LengthSettings) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 3)).astype(np.float32), rng.normal(size=400)
    forest = fit_forest(X, y, quick.model_copy(update={"max_features": 1.0}), 50)
    assert {tree.tree_.weighted_n_node_samples[0] for tree in forest.estimators_} == {50}

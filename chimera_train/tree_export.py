"""LightGBM's trees as the flat arrays of ``predict.trees``."""

from collections.abc import Mapping, Sequence
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from chimera_train.predict.trees import TreeSums

__all__ = ["flat_trees"]


def flat_trees(
    boosters: Sequence[lightgbm.Booster], n_rows: int
) -> tuple[TreeSums, npt.NDArray[np.int32]]:
    """The trees, a sum for each booster, and how many training rows fell into each leaf.

    A sum equals ``Booster.predict(X, raw_score=True)`` for all rows of float32, but that LightGBM
    takes ±1e-35 and what is between for zero.

    Args:
        boosters: fitted without missing values (``use_missing: false``), which no column has.
        n_rows: training rows of each.
    """
    flat = _Flat(n_rows)
    first_tree = [0]
    for booster in boosters:
        for tree in booster.dump_model()["tree_info"]:
            flat.add(tree["tree_structure"])
        first_tree.append(len(flat.roots))
    sums = TreeSums(
        first_tree=np.array(first_tree, dtype=np.int32),
        roots=np.array(flat.roots, dtype=np.int32),
        feature=np.array(flat.feature, dtype=np.int32),
        threshold=np.array(flat.threshold, dtype=np.float64),
        left=np.array(flat.left, dtype=np.int32),
        right=np.array(flat.right, dtype=np.int32),
        leaf_value=np.array(flat.leaf_value, dtype=np.float64),
    )
    return sums, np.array(flat.leaf_rows, dtype=np.int32)


class _Flat:
    """The columns of ``TreeSums``, of trees fitted on ``n_rows``, as they grow."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows
        self.roots: list[int] = []
        self.feature: list[int] = []
        self.threshold: list[float] = []
        self.left: list[int] = []
        self.right: list[int] = []
        self.leaf_value: list[float] = []
        self.leaf_rows: list[int] = []

    def add(self, tree: Mapping[str, Any]) -> None:
        """Add a tree as ``Booster.dump_model`` nests it."""
        waiting = [(tree, self.roots, len(self.roots))]
        self.roots.append(0)
        while waiting:  # trees of a thousand leaves may be as deep
            node, link, position = waiting.pop()
            if "leaf_value" in node:
                link[position] = ~len(self.leaf_value)
                self.leaf_value.append(node["leaf_value"])
                # A leaf that is a whole tree has no count in some versions.
                self.leaf_rows.append(node.get("leaf_count", self._n_rows))
                continue
            number = link[position] = len(self.feature)
            self.feature.append(node["split_feature"])
            self.threshold.append(node["threshold"])
            self.left.append(0)
            self.right.append(0)
            waiting.append((node["left_child"], self.left, number))
            waiting.append((node["right_child"], self.right, number))

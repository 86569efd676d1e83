"""Sums of decision trees as flat arrays, evaluated in compiled code.

Several sums share one set of arrays: a quantile of each level (``predict.boosted``), or the logit
of each model (Friedman 2001). Children come after their parent. A node is given by its number, a
leaf ``i`` by ``~i``, which is negative.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place, in_place_inner
from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_as, save_arrays

__all__ = ["TreeArrays", "TreeSums", "add_up", "are_sound", "leaf_of", "n_columns"]

Array = npt.NDArray[Any]


class TreeArrays(Protocol):
    """The arrays of trees that are summed.

    Attributes:
        first_tree: sum ``i`` has the trees ``first_tree[i]`` to ``first_tree[i + 1] - 1``, shape
            (n_sums + 1,).
        roots: root of each tree, a node or a leaf, shape (n_trees,).
        feature: column that a node tests, shape (n_nodes,).
        threshold: rows with ``x[feature] <= threshold`` go left.
        left, right: child of a node, a node or a leaf.
        leaf_value: what a leaf adds to the sum, shape (n_leaves,).
    """

    @property
    def first_tree(self) -> npt.NDArray[np.int32]: ...

    @property
    def roots(self) -> npt.NDArray[np.int32]: ...

    @property
    def feature(self) -> npt.NDArray[np.int32]: ...

    @property
    def threshold(self) -> npt.NDArray[np.float64]: ...

    @property
    def left(self) -> npt.NDArray[np.int32]: ...

    @property
    def right(self) -> npt.NDArray[np.int32]: ...

    @property
    def leaf_value(self) -> npt.NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class TreeSums:
    """``TreeArrays`` and nothing else.

    Raises:
        DataError: the arrays do not describe trees, so that evaluating them could read out of
            bounds or never end.
    """

    first_tree: npt.NDArray[np.int32]
    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    leaf_value: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        flat = all(getattr(self, field.name).ndim == 1 for field in fields(self))
        if not (flat and are_sound(self)):
            raise DataError("The trees' arrays contradict each other: fit again.")

    @property
    def n_sums(self) -> int:
        """How many sums there are."""
        return len(self.first_tree) - 1

    @property
    def min_features(self) -> int:
        """The least number of columns that a row must have."""
        return n_columns(self)

    def sums(self, X: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Each row's sums, shape (n, n_sums); rows are compared as float32."""
        return add_up(self, X)

    def save(self, path: Path) -> None:
        """Write the trees to an ``.npz`` file."""
        save_arrays(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "TreeSums":
        """Read what :meth:`save` wrote, without pickle.

        Raises:
            DataError: the file is missing, damaged, or does not describe trees.
        """
        kinds: dict[str, type[np.generic]] = {field.name: np.int32 for field in fields(cls)}
        kinds |= dict.fromkeys(("threshold", "leaf_value"), np.float64)
        return load_as(cls, path, kinds)


def are_sound(trees: TreeArrays) -> bool:
    """Whether evaluation ends and reads nothing out of bounds; the arrays are of one dimension."""
    n_nodes, n_leaves = len(trees.feature), len(trees.leaf_value)
    nodes = np.arange(n_nodes)
    return (
        len(trees.threshold) == len(trees.left) == len(trees.right) == n_nodes
        and bool(np.isfinite(trees.threshold).all() and np.isfinite(trees.leaf_value).all())
        and len(trees.first_tree) > 1
        and trees.first_tree[0] == 0
        and bool(np.all(np.diff(trees.first_tree) > 0))
        and trees.first_tree[-1] == len(trees.roots)
        and bool(np.all(trees.feature >= 0))
        and all(
            bool(np.all((children >= -n_leaves) & (children < n_nodes)))
            for children in (trees.roots, trees.left, trees.right)
        )
        and all(
            bool(np.all((children > nodes) | (children < 0)))
            for children in (trees.left, trees.right)
        )
    )


def n_columns(trees: TreeArrays) -> int:
    """The least number of columns that a row must have."""
    return int(trees.feature.max(initial=-1)) + 1


def add_up(trees: TreeArrays, X: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """What the trees of each sum give each row, shape (n, n_sums); rows compare as float32."""
    sums = np.zeros((len(X), len(trees.first_tree) - 1))
    _add_up(
        np.ascontiguousarray(X, dtype=np.float32), trees.first_tree, trees.roots, trees.feature,
        trees.threshold, trees.left, trees.right, trees.leaf_value, sums,
    )  # fmt: skip
    return sums


@in_place_inner
def leaf_of(
    X: Array, row: int, root: int, feature: Array, threshold: Array, left: Array, right: Array
) -> int:
    """The leaf of a tree that a row falls into; for compiled callers."""
    node = root
    while node >= 0:
        goes_left = X[row, feature[node]] <= threshold[node]
        node = left[node] if goes_left else right[node]
    return ~node


@in_place
def _add_up(
    X: Array, first_tree: Array, roots: Array, feature: Array, threshold: Array, left: Array,
    right: Array, leaf_value: Array, sums: Array,
) -> None:  # fmt: skip
    for each in range(sums.shape[1]):
        for tree in range(first_tree[each], first_tree[each + 1]):
            root = roots[tree]
            for row in range(len(X)):  # inside, so that the tree stays in the cache
                leaf = leaf_of(X, row, root, feature, threshold, left, right)
                sums[row, each] += leaf_value[leaf]

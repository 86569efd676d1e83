"""A fitted quantile regression forest as flat arrays, evaluated in compiled code.

A prediction pools, over all trees, the training targets of the leaf that the row falls into, and
takes quantiles of that pool (Meinshausen 2006). Targets are token counts, so there are few distinct
ones: leaves hold ranks into the sorted distinct targets, and a pool is a histogram over ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_as, save_arrays

__all__ = ["ForestArrays", "checked_levels", "histogram_quantiles"]

Array = npt.NDArray[Any]

# What evaluation reads of a node, side by side, so that it is in one line of the processor's cache.
# A leaf has the range of its ranks in place of its children, and the mean of its targets.
_NODE = np.dtype(
    [("feature", np.int32), ("threshold", np.float32), ("left", np.int32), ("right", np.int32)]
)


@dataclass(frozen=True, slots=True)
class ForestArrays:
    """The trees of one forest, laid end to end; children come after their parent.

    Attributes:
        roots: first node of each tree, shape (n_trees,).
        feature: column that a node tests; -1: a leaf. Shape (n_nodes,).
        threshold: rows with ``x[feature] <= threshold`` go left. float32 like the rows.
        left, right: child nodes; -1 at a leaf.
        leaf_start: leaf ``i`` holds ``leaf_ranks[leaf_start[i]:leaf_start[i + 1]]``; inner nodes
            hold nothing. Shape (n_nodes + 1,).
        leaf_ranks: ranks of the training targets in the leaves, repeated as often as drawn.
        values: the distinct training targets, ascending.
        value_rows: how many training rows have each of ``values``.

    Raises:
        DataError: the arrays do not describe a forest, so that evaluating them could read out of
            bounds or never end.
    """

    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float32]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    leaf_start: npt.NDArray[np.int32]
    leaf_ranks: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]
    value_rows: npt.NDArray[np.int32]
    _nodes: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        n_nodes = len(self.feature)
        inner = self.feature >= 0
        nodes = np.arange(n_nodes)
        sound = (
            all(array.ndim == 1 for array in self._arrays().values())
            and len(self.threshold) == len(self.left) == len(self.right) == n_nodes
            and len(self.leaf_start) == n_nodes + 1
            and len(self.values) == len(self.value_rows) > 0
            and len(self.roots) > 0
            and _within(self.roots, 0, n_nodes)
            and all(
                (child[inner] > nodes[inner]).all() and _within(child[inner], 0, n_nodes)
                for child in (self.left, self.right)
            )
            and self.leaf_start[0] == 0
            and self.leaf_start[-1] == len(self.leaf_ranks)
            and ((np.diff(self.leaf_start) > 0) == ~inner).all()
            and _within(self.leaf_ranks, 0, len(self.values))
            and bool(np.isfinite(self.values).all())
        )
        if not sound:
            raise DataError("The forest's arrays contradict each other: fit again.")
        object.__setattr__(self, "_nodes", self._packed())

    def _arrays(self) -> dict[str, Array]:
        return {of.name: getattr(self, of.name) for of in fields(self) if of.init}

    def _packed(self) -> Array:
        nodes = np.empty(len(self.feature), dtype=_NODE)
        for name in _NODE.names or ():
            nodes[name] = getattr(self, name)
        leaves = np.flatnonzero(self.feature < 0)
        nodes["left"][leaves] = self.leaf_start[leaves]
        nodes["right"][leaves] = self.leaf_start[leaves + 1]
        # Leaves follow each other without gaps, and none is empty.
        sums = np.add.reduceat(self.values[self.leaf_ranks], self.leaf_start[leaves])
        nodes["threshold"][leaves] = sums / np.diff(self.leaf_start)[leaves]
        return nodes

    @property
    def min_features(self) -> int:
        """The least number of columns that a row must have."""
        return int(self.feature.max()) + 1

    def quantiles(
        self, X: npt.NDArray[np.floating], quantiles: Sequence[float]
    ) -> npt.NDArray[np.float64]:
        """Conditional quantiles of the target, shape (n, len(quantiles)).

        Equal to ``RandomForestQuantileRegressor.predict(X, quantiles)`` with its defaults: every
        drawn training row weighs the same, and between two neighbours in the pool the quantile is
        interpolated linearly.

        Args:
            X: rows, shape (n, n_features); compared as float32.
            quantiles: each in [0, 1].
        """
        return self.quantiles_above(X, quantiles, np.full(len(X), -np.inf))

    def quantiles_above(
        self,
        X: npt.NDArray[np.floating],
        quantiles: Sequence[float],
        above: npt.NDArray[np.floating],
    ) -> npt.NDArray[np.float64]:
        """Quantiles of the target given that it exceeds ``above`` (one bound a row).

        Where no target in a row's leaves exceeds its bound, the pool is that of all training rows;
        where none of those does either, the result is NaN. Shape (n, len(quantiles)).
        """
        q = checked_levels(quantiles)
        out = np.empty((len(X), len(q)))
        _evaluate(
            self._leaves(X), q, np.searchsorted(self.values, above, side="right"),
            self.leaf_ranks, self.values, self.value_rows, out,
        )  # fmt: skip
        return out

    def spread(self, X: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """How far the trees disagree: the standard deviation of their leaves' means, shape (n,).

        It is large where the trees had little to go by, as on rows unlike those of the training.
        """
        return self._leaves(X)["threshold"].std(axis=1, dtype=np.float64)

    def _leaves(self, X: npt.NDArray[np.floating]) -> Array:
        """The leaf of each tree that a row falls into, as ``_NODE``, shape (n, n_trees)."""
        leaves = np.empty((len(X), len(self.roots)), dtype=_NODE)
        _find_leaves(np.ascontiguousarray(X, dtype=np.float32), self.roots, self._nodes, leaves)
        return leaves

    def save(self, path: Path) -> None:
        """Write the forest to an ``.npz`` file."""
        save_arrays(path, self._arrays())

    @classmethod
    def load(cls, path: Path) -> "ForestArrays":
        """Read what :meth:`save` wrote, without pickle.

        Raises:
            DataError: the file is missing, damaged, or does not describe a forest.
        """
        kinds: dict[str, type[np.generic]] = {of.name: np.int32 for of in fields(cls) if of.init}
        kinds |= {"threshold": np.float32, "values": np.float64}
        return load_as(cls, path, kinds)


def checked_levels(quantiles: Sequence[float]) -> npt.NDArray[np.float64]:
    """``quantiles`` as an array, for compiled code, which would read out of bounds.

    Raises:
        ValueError: one is not in [0, 1].
    """
    q = np.asarray(quantiles, dtype=np.float64)
    if not ((q >= 0) & (q <= 1)).all():
        raise ValueError(f"Quantiles must lie in [0, 1], got {list(quantiles)}.")
    return q


def _within(indices: npt.NDArray[np.int32], low: int, high: int) -> bool:
    return bool(((indices >= low) & (indices < high)).all())


@numba.njit(cache=True, nogil=True)
def _find_leaves(X: Array, roots: Array, nodes: Array, leaves: Array) -> None:
    # Rows inside, so that a tree stays in the cache.
    for tree in range(len(roots)):
        for row in range(len(X)):
            node = roots[tree]
            while nodes[node].feature >= 0:
                goes_left = X[row, nodes[node].feature] <= nodes[node].threshold
                node = nodes[node].left if goes_left else nodes[node].right
            leaves[row, tree] = nodes[node]


@numba.njit(cache=True, nogil=True)
def _evaluate(
    leaves: Array, q: Array, first: Array, leaf_ranks: Array, values: Array, value_rows: Array,
    out: Array,
) -> None:  # fmt: skip
    """Fill ``out`` row by row; only ranks from ``first[row]`` on belong to a row's pool."""
    counts = np.zeros(len(values), dtype=np.int64)
    for row in range(len(leaves)):
        low, high, total = len(values), -1, 0
        for tree in range(leaves.shape[1]):
            leaf = leaves[row, tree]
            for rank in leaf_ranks[leaf.left : leaf.right]:
                if rank >= first[row]:
                    counts[rank] += 1
                    total += 1
                    low = min(low, rank)
                    high = max(high, rank)
        if total > 0:
            histogram_quantiles(values, counts, low, total, q, out[row])
            counts[low : high + 1] = 0
        elif first[row] < len(values):
            total = value_rows[first[row] :].sum()
            histogram_quantiles(values, value_rows, first[row], total, q, out[row])
        else:
            out[row] = np.nan


@numba.njit(cache=True, nogil=True)
def histogram_quantiles(
    values: Array, counts: Array, low: int, total: int, q: Array, out: Array
) -> None:
    """Linear quantiles of the multiset that has ``values[r]`` ``counts[r]`` times, for r >= low."""
    for i in range(len(q)):
        position = q[i] * (total - 1)
        below = int(position)
        rank, seen = low, counts[low]
        while seen <= below:
            rank += 1
            seen += counts[rank]
        value = values[rank]
        if position > below and seen == below + 1:
            rank += 1
            while counts[rank] == 0:
                rank += 1
            value += (position - below) * (values[rank] - value)
        out[i] = value

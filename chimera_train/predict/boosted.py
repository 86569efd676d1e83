"""Boosted quantile trees as flat arrays, evaluated in compiled code.

There is one sum of trees for each level of a grid of quantiles (Koenker and Bassett 1978; Friedman
2001). They are fitted apart, so that they may cross; sorting the sums of a row makes them quantiles
of one distribution again, never farther from the true ones (Chernozhukov et al. 2010). Between two
levels the quantile is linear in the level. All that lies below the lowest level is put at its
quantile. Above the highest, the excess is exponential, with the mean that the two highest levels
give, and ends at the largest training target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place, in_place_inner
from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_as, save_arrays
from chimera_train.predict.forest import checked_levels, histogram_quantiles
from chimera_train.predict.trees import add_up, are_sound, leaf_of, n_columns

__all__ = ["BoostedArrays"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class BoostedArrays:
    """The trees of all levels, laid end to end: ``predict.trees.TreeArrays``, a sum a level.

    Attributes:
        levels: the levels of the quantiles, ascending, two or more, shape (n_levels,).
        leaf_rows: how many training rows fell into a leaf, shape (n_leaves,).
        values: the distinct training targets, ascending.
        value_rows: how many training rows have each of ``values``.

    Raises:
        DataError: the arrays do not describe boosted trees, so that evaluating them could read out
            of bounds or never end.
    """

    levels: npt.NDArray[np.float64]
    first_tree: npt.NDArray[np.int32]
    roots: npt.NDArray[np.int32]
    feature: npt.NDArray[np.int32]
    threshold: npt.NDArray[np.float64]
    left: npt.NDArray[np.int32]
    right: npt.NDArray[np.int32]
    leaf_value: npt.NDArray[np.float64]
    leaf_rows: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]
    value_rows: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        sound = (
            all(getattr(self, field.name).ndim == 1 for field in fields(self))
            and are_sound(self)
            and len(self.first_tree) == len(self.levels) + 1 > 2
            and len(self.leaf_rows) == len(self.leaf_value)
            and len(self.values) == len(self.value_rows) > 0
            and bool(np.isfinite(self.values).all())
            and bool(np.all(np.diff(self.levels, prepend=0.0, append=1.0) > 0))
            and bool(np.all(np.diff(self.values) > 0))
            and all(bool(np.all(rows > 0)) for rows in (self.leaf_rows, self.value_rows))
        )
        if not sound:
            raise DataError("The boosted trees' arrays contradict each other: fit again.")

    @property
    def min_features(self) -> int:
        """The least number of columns that a row must have."""
        return n_columns(self)

    def quantiles(
        self, X: npt.NDArray[np.floating], quantiles: Sequence[float]
    ) -> npt.NDArray[np.float64]:
        """Conditional quantiles of the target, shape (n, len(quantiles)).

        At the levels of the grid they are the sorted ``Booster.predict`` of LightGBM.

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

        A row whose target would exceed its bound less than once in as many rows as there were in
        training is beyond what the trees can know: all training targets above the bound stand in;
        where there is none, the result is NaN. Shape (n, len(quantiles)).
        """
        q = checked_levels(quantiles)
        at_levels = add_up(self, X)
        at_levels.sort(axis=1)
        out = np.empty((len(X), len(q)))
        _evaluate(
            at_levels, self.levels, q, np.ascontiguousarray(above, dtype=np.float64),
            np.searchsorted(self.values, above, side="right"), self.values, self.value_rows, out,
        )  # fmt: skip
        return out

    def spread(self, X: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """How thinly training rows are spread where a row falls, shape (n,).

        The mean over the trees of −log of the share of training rows in the row's leaf. It is large
        for rows unlike those of the training.
        """
        out = np.empty(len(X))
        _spread(
            np.ascontiguousarray(X, dtype=np.float32),
            self.roots, self.feature, self.threshold, self.left, self.right,
            -np.log(self.leaf_rows / self.value_rows.sum()), out,
        )  # fmt: skip
        return out

    def save(self, path: Path) -> None:
        """Write the trees to an ``.npz`` file."""
        save_arrays(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "BoostedArrays":
        """Read what :meth:`save` wrote, without pickle.

        Raises:
            DataError: the file is missing, damaged, or does not describe boosted trees.
        """
        kinds: dict[str, type[np.generic]] = {field.name: np.int32 for field in fields(cls)}
        kinds |= dict.fromkeys(("levels", "threshold", "leaf_value", "values"), np.float64)
        return load_as(cls, path, kinds)


@in_place
def _spread(
    X: Array, roots: Array, feature: Array, threshold: Array, left: Array, right: Array,
    rarity: Array, out: Array,
) -> None:  # fmt: skip
    out[:] = 0.0
    for root in roots:
        for row in range(len(X)):
            out[row] += rarity[leaf_of(X, row, root, feature, threshold, left, right)] / len(roots)


@in_place
def _evaluate(
    at_levels: Array, levels: Array, q: Array, above: Array, first: Array, values: Array,
    value_rows: Array, out: Array,
) -> None:  # fmt: skip
    """Fill ``out`` row by row from the sorted quantiles at the levels.

    The training targets from ``values[first[row]]`` on exceed the row's bound.
    """
    n_training = value_rows.sum()
    for row in range(len(at_levels)):
        own = at_levels[row]
        largest = max(values[-1], own[-1])
        exceeding = _share_above(own, levels, above[row])
        if above[row] < largest and exceeding * n_training >= 1.0:
            for i in range(len(q)):
                share = 1.0 - exceeding + q[i] * exceeding
                left_over = (1.0 - q[i]) * exceeding
                out[row, i] = min(_quantile(own, levels, share, left_over), largest)
        elif first[row] < len(values):
            n_above = value_rows[first[row] :].sum()
            histogram_quantiles(values, value_rows, first[row], n_above, q, out[row])
        else:
            out[row, :] = np.nan


@in_place_inner
def _mean_excess(at_levels: Array, levels: Array) -> float:
    """Mean excess over the highest quantile: an exponential tail through the two highest."""
    decline = np.log((1.0 - levels[-2]) / (1.0 - levels[-1]))
    return (at_levels[-1] - at_levels[-2]) / decline


@in_place_inner
def _share_above(at_levels: Array, levels: Array, bound: float) -> float:
    """The probability that a target with these quantiles exceeds ``bound``."""
    if bound < at_levels[0]:
        return 1.0
    if bound >= at_levels[-1]:
        mean = _mean_excess(at_levels, levels)
        if mean == 0.0:
            return 0.0
        return (1.0 - levels[-1]) * np.exp(-(bound - at_levels[-1]) / mean)
    i = len(levels) - 2
    while at_levels[i] > bound:
        i -= 1
    part = (bound - at_levels[i]) / (at_levels[i + 1] - at_levels[i])
    return 1.0 - levels[i] - part * (levels[i + 1] - levels[i])


@in_place_inner
def _quantile(at_levels: Array, levels: Array, share: float, left_over: float) -> float:
    """The target that ``share`` do not exceed and ``left_over = 1 - share`` do."""
    if share <= levels[0]:
        return at_levels[0]
    if share > levels[-1]:
        mean = _mean_excess(at_levels, levels)
        if mean == 0.0:
            return at_levels[-1]
        if left_over == 0.0:
            return np.inf
        return at_levels[-1] + mean * np.log((1.0 - levels[-1]) / left_over)
    i = 0
    while share > levels[i + 1]:
        i += 1
    part = (share - levels[i]) / (levels[i + 1] - levels[i])
    return at_levels[i] + part * (at_levels[i + 1] - at_levels[i])

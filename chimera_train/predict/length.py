"""Predicting the remaining output length of a program from each of its stages (Chimera §3.4).

A length directory holds ``length.json`` (the manifest, written last), one ``.npz`` of arrays per
estimator, the cells and, unless the traces held no text, the text sketch. Everything is checked
when loaded. The same estimators can predict a stage's own tokens; the manifest tells their target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.predict.cells import Cell, Cells, Level
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.length_files import load_estimator, load_verified
from chimera_train.predict.outside import Bounds

__all__ = ["INTERVAL", "Estimator", "LengthPredictor", "Predicted", "StageRequest"]

#: The quantiles between which four lengths in five shall lie.
INTERVAL = (0.1, 0.9)

Floats = npt.NDArray[np.float64]

Source = Literal["model"] | Level


class Estimator(Protocol):
    """Conditional quantiles of log(1 + tokens)."""

    @property
    def min_features(self) -> int: ...

    def quantiles_above(
        self, X: npt.NDArray[np.floating], quantiles: Sequence[float], above: Floats
    ) -> Floats: ...

    def spread(self, X: npt.NDArray[np.floating]) -> Floats: ...

    def save(self, path: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions and what they rest on.

    Attributes:
        tokens: quantiles, shape (n, n_quantiles).
        source: ``model`` where an estimator predicted; else what stood in for it: the lengths of
            the same ``cell``, of the same ``workflow``, or ``global``, all that there are.
        outside: how far each request lies outside the training data, shape (n,): from 0, inside,
            to 1. Such a share of the prediction is that of its cell.
    """

    tokens: Floats
    source: Sequence[Source]
    outside: Floats


class LengthPredictor:
    """The estimators of every model, and what stands in where they know nothing.

    Args:
        features: how requests become rows.
        estimators: model name → estimator; one for all models if the features are pooled.
        cells: the lengths of each (workflow, stage, model).
        bounds: what the training data covers, by model.
        overheads: model name → tokens that its chat template adds to system + user tokens.

    Raises:
        DataError: an estimator tests a column that ``features`` does not have, or has no bounds.
    """

    def __init__(
        self,
        features: Features,
        estimators: Mapping[str, Estimator],
        cells: Cells,
        bounds: Mapping[str, Bounds],
        overheads: Mapping[str, int],
    ) -> None:
        for model, estimator in estimators.items():
            if estimator.min_features > features.n_features:
                raise DataError(
                    f"The length predictor of '{model}' needs {estimator.min_features} features,"
                    f" but there are {features.n_features}: fit again."
                )
            if model not in bounds:
                raise DataError(
                    f"The length predictor of '{model}' lacks the bounds of its training data: fit"
                    " again."
                )
        self.models = tuple(sorted(estimators))
        self.features = features
        self.estimators = dict(estimators)
        self.cells = cells
        self.bounds = dict(bounds)
        self._overheads = dict(overheads)

    @classmethod
    def load(
        cls, directory: Path, target: Literal["remaining", "stage"] = "remaining"
    ) -> "LengthPredictor":
        """Read a directory written by ``chimera-train fit length``.

        Raises:
            DataError: a file is missing or altered, the schema or the features are not this
                version's, or the estimators predict something else than ``target``.
        """
        manifest, features = load_verified(directory, target)
        by_file = {
            entry.file: load_estimator(directory / entry.file, manifest.estimator)
            for entry in manifest.models.values()
        }
        return cls(
            features,
            {model: by_file[entry.file] for model, entry in manifest.models.items()},
            Cells.load(directory),
            {model: entry.bounds for model, entry in manifest.models.items() if entry.bounds},
            {model: entry.template_overhead_tokens for model, entry in manifest.models.items()},
        )

    def with_cells(self, cells: Cells) -> "LengthPredictor":
        """The same with other cells."""
        return LengthPredictor(self.features, self.estimators, cells, self.bounds, self._overheads)

    def template_overhead_tokens(self, model: str) -> int:
        """Tokens that ``model``'s chat template adds: median of prompt − system − user.

        Raises:
            DataError: ``model`` was not fitted.
        """
        if model not in self._overheads:
            raise DataError(
                f"No lengths were fitted for model '{model}': there are {', '.join(self.models)}."
            )
        return self._overheads[model]

    def predict(
        self, model: str, requests: Sequence[StageRequest], quantiles: Sequence[float] = (0.5,)
    ) -> Floats:
        """``predict_with_source`` without the source: shape (n, len(quantiles)), tokens."""
        return self.predict_with_source(model, requests, quantiles).tokens

    def predict_with_source(
        self, model: str, requests: Sequence[StageRequest], quantiles: Sequence[float] = (0.5,)
    ) -> Predicted:
        """Quantiles of the tokens the program still generates, the stage itself included.

        With target ``stage``, of the stage's tokens alone. The conditional median is ŷ. The 10 and
        90 % quantiles are calibrated, so that about a tenth of the lengths of requests like those
        of the training data lies beyond each. A request outside of what the training data covers
        gets a mixture with its cell's quantiles, and one of a model, workflow or stage that was
        never seen gets those of the narrowest cell that was.
        """
        return self._quantiles(self._look(model, requests), quantiles, None)

    def remaining_after(
        self,
        model: str,
        requests: Sequence[StageRequest],
        generated: Sequence[int],
        quantiles: Sequence[float] = (0.5,),
    ) -> Floats:
        """Quantiles of ``Y − g`` given ``Y > g``, where g tokens of the stage are generated.

        Conditioning, instead of flooring ŷ − g at one token, keeps a request that outlives ŷ from
        looking almost done. Where no target in the request's leaves exceeds g, all training rows of
        the model stand in; a request longer than every one of those is expected to double, as under
        a Pareto tail of index one, whose median excess over g is g. Shape (n, len(quantiles)),
        tokens, positive.
        """
        seen = self._look(model, requests)
        return self._excess(seen, np.asarray(generated, dtype=np.float64), quantiles)

    def predict_with_overrun(
        self, model: str, requests: Sequence[StageRequest]
    ) -> tuple[Floats, Floats]:
        """ŷ, and the median of what is left of a program that outlives it, both of shape (n,).

        They are ``predict`` and ``remaining_after`` ŷ in whole tokens, at less than the cost of
        both.
        """
        median, overrun, _ = self.predict_with_interval(model, requests)
        return median, overrun

    def predict_with_interval(
        self, model: str, requests: Sequence[StageRequest]
    ) -> tuple[Floats, Floats, Floats]:
        """``predict_with_overrun``, and the quantiles of ``INTERVAL``, shape (n, 2), tokens."""
        seen = self._look(model, requests)
        tokens = self._quantiles(seen, (0.5, *INTERVAL), None).tokens
        median = tokens[:, 0]
        return median, self._excess(seen, np.rint(median), (0.5,))[:, 0], tokens[:, 1:]

    def _look(self, model: str, requests: Sequence[StageRequest]) -> "_Seen":
        found = [self.cells.find(model, r.workflow, r.stage) for r in requests]
        cells, levels = [cell for cell, _ in found], [level for _, level in found]
        if model not in self.estimators:
            return _Seen(None, None, cells, list(levels), np.ones(len(requests)))
        estimator = self.estimators[model]
        X, novelty = self.features.rows(model, requests)
        outside = self.bounds[model].outside(requests, estimator.spread(X), novelty)
        outside[[level != "cell" for level in levels]] = 1.0
        source: list[Source] = ["model" if level == "cell" else level for level in levels]
        return _Seen(estimator, X, cells, source, outside)

    def _excess(self, seen: "_Seen", g: Floats, quantiles: Sequence[float]) -> Floats:
        tokens = self._quantiles(seen, quantiles, g).tokens
        return np.where(np.isnan(tokens), g[:, None], tokens - g[:, None])

    def _quantiles(
        self, seen: "_Seen", quantiles: Sequence[float], above: Floats | None
    ) -> Predicted:
        """Quantiles of all lengths, or of those above a bound for each request, NaN if none is."""
        outside = seen.outside
        bound = np.full(len(outside), -np.inf) if above is None else above
        # The median comes last, for the correction of the others must not cross it.
        asked = [*quantiles, 0.5]
        if seen.estimator is None or seen.X is None:
            logs = np.full((len(outside), len(asked)), np.nan)
        else:
            # Half a token more: logarithms of whole numbers need not agree to the last digit.
            log_bound = bound if above is None else np.log1p(bound + 0.5)
            logs = seen.estimator.quantiles_above(seen.X, asked, log_bound)

        for row in np.flatnonzero(outside):
            in_cell = np.log1p(seen.cells[row].quantiles(asked, bound[row]))
            if np.isnan(in_cell[0]):  # nothing so long was seen in the cell
                continue
            if outside[row] == 1:
                logs[row] = in_cell
            else:
                logs[row] += outside[row] * (in_cell - logs[row])
        if above is None:
            logs = _calibrated(logs, asked, seen.cells, 1.0 - outside)
        # A millionth of a token, so that whole numbers survive the way through the logarithm.
        tokens = np.round(np.maximum(np.expm1(logs[:, :-1]), 0.0), 6)
        return Predicted(tokens, seen.source, outside)


class _Seen(NamedTuple):
    """What a predictor makes of requests, whatever is asked of them.

    Attributes:
        estimator, X: and the rows that it is asked about; None for a model that was never seen.
        cells: the narrowest that were seen, of each request.
        source, outside: as in ``Predicted``.
    """

    estimator: Estimator | None
    X: npt.NDArray[np.float32] | None
    cells: Sequence[Cell]
    source: Sequence[Source]
    outside: Floats


def _calibrated(
    logs: Floats, quantiles: Sequence[float], cells: Sequence[Cell], share: Floats
) -> Floats:
    """Quantiles with the cells' corrections, which are whole at ``INTERVAL`` and none at ½.

    They correct the estimator, so a mixture gets its ``share``, shape (n,), of them. The last
    column is the median, which no other crosses.
    """
    q, (low, high), median = np.asarray(quantiles), INTERVAL, logs[:, -1:]
    ends = np.array([(cell.low, cell.high) for cell in cells]).reshape(len(cells), 2)
    ends *= share[:, None]
    lower = logs + ends[:, :1] * np.clip((0.5 - q) / (0.5 - low), 0, 1)
    upper = logs + ends[:, 1:] * np.clip((q - 0.5) / (high - 0.5), 0, 1)
    logs = np.where(q < 0.5, np.minimum(lower, median), np.maximum(upper, median))
    order = np.argsort(q, kind="stable")
    logs[:, order] = np.sort(logs[:, order], axis=1)
    return logs

"""What makes a fitted predictor honest: cells to fall back to, bounds, and calibrated intervals.

The share of lengths that lies beyond the predicted 10 and 90 % quantiles is measured in each cell
on an eighth of the training questions, with estimators fitted on the others, and the quantiles
are moved by what split conformal prediction asks for (Romano, Patterson and Candès 2019,
"Conformalized quantile regression", one end at a time, here on logarithms): of data exchangeable
with these, at most a tenth then lies beyond each end. The estimators that are used in the end are
fitted on all training questions, for the eighth is worth more to the order of programs than the
letter of the guarantee; what they cover is measured on the folds left out.
"""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.length.rows import stage_requests
from chimera_train.predict.cells import SAMPLE, Cell, Cells
from chimera_train.predict.features import Features
from chimera_train.predict.length import INTERVAL, Estimator, LengthPredictor
from chimera_train.predict.outside import Bounds, counts
from chimera_train.traces.split import hashed

__all__ = ["LEAST_ROWS", "calibrated", "covered", "observed_cells", "reserved"]

#: Reserved rows from which a cell gets corrections of its own; with fewer, the ranks that conformal
#: prediction takes overshoot, and a wider cell's are used.
LEAST_ROWS = 200
#: Of everything, with fewer of which nothing is corrected.
_FEWEST_ROWS = 20

_PARTS = 8
_TAIL = INTERVAL[0]
_ORDINARY = 0.99
_MOST_ROWS = 2000  # that bounds are taken from
#: Names and rare words are normal: fewer unknown words than this are never held against a text.
_LEAST_NOVELTY = 0.5

Floats = npt.NDArray[np.float64]


def reserved(question_ids: pd.Series) -> npt.NDArray[np.bool_]:
    """Which rows are not to be fitted on: those of an eighth of the questions."""
    return hashed(question_ids, "calibration", _PARTS) == 0


def calibrated(
    predictor: LengthPredictor, trial: LengthPredictor, kept: pd.DataFrame
) -> LengthPredictor:
    """``predictor`` with its intervals moved as those of ``trial`` must be.

    ``kept`` are rows that ``trial`` was not fitted on.
    """
    corrections = _Corrections(trial, kept)
    cells = [cell.model_copy(update=corrections.of(cell)) for cell in predictor.cells.cells]
    return predictor.with_cells(Cells(cells))


def observed_cells(rows: pd.DataFrame) -> Iterator[Cell]:
    """Of each (model, workflow, stage), and of all of one or more of these together."""
    for of_model in (True, False):
        for names in (["workflow", "stage"], ["workflow"], []):
            by = (["model"] if of_model else []) + names
            groups = rows.groupby(by) if by else [((), rows)]
            for values, group in groups:
                found = dict(zip(by, map(str, values), strict=True))
                sample = np.quantile(
                    group["target_tokens"], np.linspace(0, 1, SAMPLE), method="inverted_cdf"
                )
                yield Cell(
                    model=found.get("model"),
                    workflow=found.get("workflow"),
                    stage=found.get("stage"),
                    rows=len(group),
                    tokens=sample.astype(float).tolist(),
                )


def covered(features: Features, estimator: Estimator, model: str, fitted: pd.DataFrame) -> Bounds:
    """What the rows ``fitted`` of ``model`` cover."""
    seen = counts(stage_requests(fitted))
    # Trees disagree on rows that they were grown from nearly as much as on others.
    requests = stage_requests(fitted.iloc[:: math.ceil(len(fitted) / _MOST_ROWS)])
    X, novelty = features.rows(model, requests)
    return Bounds(
        least=seen.min(axis=0).tolist(),
        most=seen.max(axis=0).tolist(),
        spread=float(np.quantile(estimator.spread(X), _ORDINARY)),
        novelty=max(_LEAST_NOVELTY, float(np.quantile(novelty, _ORDINARY))),
    )


class _Corrections:
    """How far the quantiles of ``predictor`` must be moved, from rows that it was not fitted on."""

    def __init__(self, predictor: LengthPredictor, rows: pd.DataFrame) -> None:
        self._names = {name: rows[name].to_numpy() for name in ("model", "workflow", "stage")}
        self._excess = np.zeros((len(rows), 2))
        truth = np.log1p(rows["target_tokens"].to_numpy(dtype=np.float64))
        for model, positions in rows.groupby("model").indices.items():
            requests = stage_requests(rows.iloc[positions])
            ends = np.log1p(predictor.predict(str(model), requests, INTERVAL))
            self._excess[positions, 0] = ends[:, 0] - truth[positions]
            self._excess[positions, 1] = truth[positions] - ends[:, 1]

    def of(self, cell: Cell) -> dict[str, float]:
        """``low`` and ``high`` of a cell, from the narrowest cell around it with enough rows."""
        for given in (("model", "workflow", "stage"), ("model", "workflow"), ("model",), ()):
            is_in = np.ones(len(self._excess), dtype=bool)
            for name in given:
                if getattr(cell, name) is not None:
                    is_in &= self._names[name] == getattr(cell, name)
            if is_in.sum() >= (LEAST_ROWS if given else _FEWEST_ROWS):
                low, high = (_conformal(column) for column in self._excess[is_in].T)
                return {"low": -low, "high": high}
        return {"low": 0.0, "high": 0.0}


def _conformal(excess: Floats) -> float:
    """What at most a ``_TAIL`` of values exchangeable with ``excess`` exceeds."""
    rank = math.ceil((len(excess) + 1) * (1 - _TAIL))
    return float(np.sort(excess)[rank - 1])

"""The figures of predicted lengths, beside those of what a scheduler would order by else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.length.ceiling import with_other_sample
from chimera_train.length.metrics import (
    Numbers,
    bootstrap_interval,
    cell_distance,
    coverage,
    fold_distance,
    pinball_loss,
    resampled_interval,
)
from chimera_train.length.value import queue_value

__all__ = [
    "BASELINES",
    "CELL",
    "QUANTILES",
    "breakdown",
    "column_distance",
    "judge",
    "prediction_figures",
]

QUANTILES = (0.1, 0.5, 0.9)
BASELINES = ("fcfs", "prompt_length", "stage_mean", "stage_median")
CELL = ["workflow", "stage", "model"]

_GROUPS = {"per_model": "model", "per_stage": "stage", "per_workflow": "workflow"}


def judge(judged: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Every figure of predicted rows, as the JSON result of ``fit length``.

    A breakdown has ``overall``, which pools models and stages, ``per_model``, ``per_stage`` and
    ``per_workflow``. A cell is a workflow, stage and model: within one, ids cannot help.

    - ``kendall_distance`` of ŷ, or the score: a breakdown of means over the folds of the distance
      within a fold, and ``within_cell``, the mean over the cells of each fold, weighted by rows.
      ``ci`` is the 95 % interval of ``overall`` over programs, ``intervals`` has the others'.
    - ``baselines``: the distance of each of ``BASELINES``; ``baselines_per_model`` the same by
      model; ``baseline_distances`` what ``kendall_distance`` has but intervals, by baseline.
    - ``coverage``, ``pinball`` (tokens): by quantile, breakdowns of means over rows, of coverage
      also ``per_cell``. ``interval_coverage``: the share of lengths from the lowest to the highest
      quantile; ``interval_ties``: of those at an end. They count as covered, so where a few lengths
      are common, coverage exceeds what was asked for. A ranker has none of the four.
    - ``queue_value``: what the order is worth (``value.queue_value``).
    - ``noise_ceiling``: where questions were sampled more than once, the distances of one sample
      told by another (``ceiling.with_other_sample``), the number of ``rows``, and
      ``predicted_overall``, what the prediction reaches on the same rows.

    Args:
        judged: rows with a column more for each of ``BASELINES``, for ``predicted`` (ŷ or a score)
            and, of forests, for each of ``QUANTILES`` (as text).
        seed: of the bootstrap intervals.
    """
    baselines = {name: _distances(judged, name) for name in BASELINES}
    figures = {
        "n_programs": int(judged["program_id"].nunique()),
        **prediction_figures(judged, seed),
        "baselines": {name: of_all["overall"] for name, of_all in baselines.items()},
        "baselines_per_model": {
            str(model): {
                name: of_all["per_model"][str(model)] for name, of_all in baselines.items()
            }
            for model in sorted(judged["model"].unique())
        },
        "baseline_distances": baselines,
        "queue_value": queue_value(judged, seed),
    }
    told = with_other_sample(judged)
    if not told.empty:
        figures["noise_ceiling"] = {
            **_distances(told, "other_sample"),
            "rows": len(told),
            "predicted_overall": column_distance(told, "predicted"),
        }
    return figures


def prediction_figures(judged: pd.DataFrame, seed: int) -> dict[str, Any]:
    """The figures of ``judge`` that compare predictions with lengths and with nothing else."""
    return {
        "kendall_distance": _distances(judged, "predicted") | _intervals(judged, seed),
        **_quantile_figures(judged),
    }


def column_distance(rows: pd.DataFrame, column: str) -> float:
    """The mean over folds of the distance of ordering judged rows by ``column``."""
    return fold_distance(*_truth_and(rows, column), _folds(rows))


def breakdown(
    rows: pd.DataFrame, figure: Callable[[pd.DataFrame], Any], *, cells: bool = False
) -> dict[str, Any]:
    """A figure of all rows, and of those of each model, stage and workflow."""
    result = {"overall": figure(rows)}
    for name, column in _GROUPS.items():
        result[name] = {str(key): figure(group) for key, group in rows.groupby(column)}
    if cells:
        result["per_cell"] = {
            " / ".join(map(str, key)): figure(group) for key, group in rows.groupby(CELL)
        }
    return result


def _distances(rows: pd.DataFrame, column: str) -> dict[str, Any]:
    return {
        **breakdown(rows, partial(column_distance, column=column)),
        "within_cell": cell_distance(*_truth_and(rows, column), _cells(rows)),
    }


def _intervals(rows: pd.DataFrame, seed: int) -> dict[str, Any]:
    """``ci`` and ``intervals`` of the distances of what was predicted."""

    def interval(group: pd.DataFrame) -> list[float]:
        rng = np.random.default_rng(seed)
        of_group = _truth_and(group, "predicted")
        return list(bootstrap_interval(*of_group, _folds(group), group["program_id"], rng))

    truth, predicted = _truth_and(rows, "predicted")
    cells = _cells(rows)
    within_cell = resampled_interval(
        lambda drawn: cell_distance(truth[drawn], predicted[drawn], cells[drawn]),
        _folds(rows),
        rows["program_id"],
        np.random.default_rng(seed),
    )
    intervals = breakdown(rows, interval)
    return {
        "ci": intervals.pop("overall"),
        "intervals": {**intervals, "within_cell": list(within_cell)},
    }


def _quantile_figures(rows: pd.DataFrame) -> dict[str, Any]:
    """Figures of the quantiles that were predicted; none without."""
    quantiles = [q for q in QUANTILES if str(q) in rows]
    if not quantiles:
        return {}
    low, high = str(quantiles[0]), str(quantiles[-1])
    length = rows["target_tokens"]
    rows = rows.assign(
        inside=length.between(rows[low], rows[high]),
        at_end=length.eq(rows[low]) | length.eq(rows[high]),
    )
    return {
        "coverage": {str(q): breakdown(rows, partial(_coverage, q), cells=True) for q in quantiles},
        "pinball": {str(q): breakdown(rows, partial(_pinball, q)) for q in quantiles},
        "interval_coverage": breakdown(rows, partial(_share, "inside"), cells=True),
        "interval_ties": breakdown(rows, partial(_share, "at_end"), cells=True),
    }


def _coverage(quantile: float, rows: pd.DataFrame) -> float:
    return coverage(*_truth_and(rows, str(quantile)))


def _pinball(quantile: float, rows: pd.DataFrame) -> float:
    return pinball_loss(*_truth_and(rows, str(quantile)), quantile)


def _share(column: str, rows: pd.DataFrame) -> float:
    return float(rows[column].mean())


def _truth_and(rows: pd.DataFrame, column: str) -> tuple[Numbers, Numbers]:
    return rows["target_tokens"].to_numpy(np.float64), rows[column].to_numpy(np.float64)


def _folds(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    return rows["fold"].to_numpy(np.int64)


def _cells(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """A number for the cell and fold of each row."""
    return rows.groupby([*CELL, "fold"]).ngroup().to_numpy().astype(np.int64)

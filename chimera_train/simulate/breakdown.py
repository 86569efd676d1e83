"""What a sweep says beside the frontier: orders and predictors of one policy, and its rates."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.simulate.frontier import BASELINES
from chimera_train.simulate.metrics import t_interval
from chimera_train.simulate.settings import PLAIN

__all__ = ["OVER_RATES", "ablations", "over_rates", "queue_by_order"]

#: The figures that are drawn over rates, where the runs have them.
OVER_RATES = ("on_time_utility", "score", "ttft_ms", "latency_p95_ms")


def queue_by_order(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The queue times of policies that a sweep has with several orders.

    Args:
        runs: as in ``frontier.compare``, with ``queue_ms``.

    Returns:
        One entry for each pool, rate, set of predictors and policy: ``pool``, ``predictors``,
        ``rate_per_s``, ``policy`` (settings without the order) and ``orders``, one entry for each:
        ``order``, ``cell``, ``queue_ms``, ``difference_ms`` to ``fcfs`` (the first order, if that
        is not there) and ``ci``. An order that an ablation leaves as it is, is not with it.
    """
    families: dict[tuple[Any, ...], dict[str, tuple[int, npt.NDArray[np.float64]]]] = {}
    for cell, rows in _with_value(runs, "queue_ms").groupby("cell", sort=False):
        policy = json.loads(rows["policy"].iloc[0])
        order = policy.pop("order")
        key = (rows["pool"].iloc[0], rows["predictors"].iloc[0], _rate(rows), json.dumps(policy))
        families.setdefault(key, {})[order] = (int(str(cell)), _by_seed(rows, "queue_ms"))
    return [
        {
            "pool": pool,
            "predictors": predictors,
            "rate_per_s": rate_per_s,
            "policy": json.loads(policy),
            "orders": _orders(orders),
        }
        for (pool, predictors, rate_per_s, policy), orders in families.items()
        if len(orders) > 1
    ]


def over_rates(runs: pd.DataFrame, figure: str) -> list[dict[str, Any]]:
    """One figure of every policy over the rates, and its mean over them.

    Args:
        runs: as in ``frontier.compare``, with ``figure``.
        figure: the name of a column; cells with a run in which it has no value are left out.

    Returns:
        One entry for each pool, set of predictors and policy that ran at several rates: ``pool``,
        ``predictors``, ``policy``, ``figure``, ``cells``, ``rates_per_s`` (ascending), ``values``,
        ``auc`` and ``ci`` of these two, and ``against``, one entry for each other policy of a kind
        in ``frontier.BASELINES``: ``baseline`` (its settings), ``auc_gain`` (within seeds) and
        ``ci``. ``auc`` is the area below the straight lines through the values, by the width of
        the range of rates: a mean over rates.
    """
    known = _with_value(runs.dropna(subset=["rate_per_s"]), figure).astype({"rate_per_s": float})
    result, areas_of = [], []
    for (pool, predictors, policy), rows in known.groupby(
        ["pool", "predictors", "policy"], sort=False
    ):
        groups = dict(list(rows.groupby("rate_per_s")))
        rates = np.array(list(groups), dtype=np.float64)
        if rates.size < 2:
            continue
        values = np.array([_by_seed(of_rate, figure) for of_rate in groups.values()])
        areas = np.trapezoid(values, rates, axis=0) / (rates[-1] - rates[0])
        result.append(
            {
                "pool": pool,
                "predictors": predictors,
                "policy": json.loads(str(policy)),
                "figure": figure,
                "cells": [int(of_rate["cell"].iloc[0]) for of_rate in groups.values()],
                "rates_per_s": rates.tolist(),
                "values": values.mean(axis=1).tolist(),
                "auc": float(areas.mean()),
                "ci": {
                    "values": [t_interval(of_rate.tolist()) for of_rate in values],
                    "auc": t_interval(areas.tolist()),
                },
            }
        )
        areas_of.append(areas)
    for curve, areas in zip(result, areas_of, strict=True):
        curve["against"] = [
            {
                "baseline": other["policy"],
                "auc_gain": float((areas - its_areas).mean()),
                "ci": {"auc_gain": t_interval((areas - its_areas).tolist())},
            }
            for other, its_areas in zip(result, areas_of, strict=True)
            if _is_baseline_of(other, curve)
        ]
    return result


def _is_baseline_of(other: dict[str, Any], curve: dict[str, Any]) -> bool:
    return (
        other is not curve
        and other["pool"] == curve["pool"]
        and other["rates_per_s"] == curve["rates_per_s"]
        and other["predictors"] == PLAIN
        and other["policy"]["kind"] in BASELINES
    )


def ablations(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """What every ablation changes of C and S of every policy that was simulated with it.

    Args:
        runs: as in ``frontier.compare``.

    Returns:
        One entry for each pool, rate, ablation and policy: ``pool``, ``predictors``,
        ``rate_per_s``, ``policy``, ``cell``, ``plain_cell`` (with the sweep's own predictors),
        ``latency_per_token_difference_ms`` and ``score_difference`` (with the ablation less
        without, within seeds), and ``ci``.
    """
    plain: dict[tuple[Any, ...], pd.DataFrame] = {}
    ablated = []
    for _, rows in runs.groupby("cell", sort=False):
        if rows["predictors"].iloc[0] == PLAIN:
            plain[_under(rows)] = rows
        else:
            ablated.append(rows)
    return [_against_plain(rows, plain[_under(rows)]) for rows in ablated]


def _against_plain(rows: pd.DataFrame, plain: pd.DataFrame) -> dict[str, Any]:
    differences = {
        name: _by_seed(rows, figure) - _by_seed(plain, figure)
        for name, figure in (
            ("latency_per_token_difference_ms", "latency_per_token_ms"),
            ("score_difference", "score"),
        )
    }
    pool, rate_per_s, policy = _under(rows)
    return {
        "pool": pool,
        "predictors": rows["predictors"].iloc[0],
        "rate_per_s": rate_per_s,
        "policy": json.loads(policy),
        "cell": int(rows["cell"].iloc[0]),
        "plain_cell": int(plain["cell"].iloc[0]),
        **{name: float(values.mean()) for name, values in differences.items()},
        "ci": {name: t_interval(values.tolist()) for name, values in differences.items()},
    }


def _under(rows: pd.DataFrame) -> tuple[str, float | None, str]:
    """What a cell has in common with those that differ in their predictors alone."""
    return rows["pool"].iloc[0], _rate(rows), rows["policy"].iloc[0]


def _orders(orders: dict[str, tuple[int, npt.NDArray[np.float64]]]) -> list[dict[str, Any]]:
    _, first = orders.get("fcfs", next(iter(orders.values())))
    return [
        {
            "order": order,
            "cell": cell,
            "queue_ms": float(queue_ms.mean()),
            "difference_ms": float((queue_ms - first).mean()),
            "ci": {
                "queue_ms": t_interval(queue_ms.tolist()),
                "difference_ms": t_interval((queue_ms - first).tolist()),
            },
        }
        for order, (cell, queue_ms) in orders.items()
    ]


def _with_value(runs: pd.DataFrame, figure: str) -> pd.DataFrame:
    """The runs of those cells in which ``figure`` has a value in every run."""
    lacking = runs.loc[runs[figure].isna(), "cell"]
    return runs[~runs["cell"].isin(lacking)]


def _by_seed(rows: pd.DataFrame, figure: str) -> npt.NDArray[np.float64]:
    return rows.sort_values("seed")[figure].to_numpy(dtype=np.float64)


def _rate(rows: pd.DataFrame) -> float | None:
    rate_per_s = rows["rate_per_s"].iloc[0]
    return None if pd.isna(rate_per_s) else float(rate_per_s)

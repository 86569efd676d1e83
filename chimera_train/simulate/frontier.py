"""Each policy's frontier of latency and score, against each baseline.

C is the latency per output token (least is best), S the score (most is best). Cells that differ in
τ alone are the points of one policy's frontier; a baseline, with the sweep's own predictors, is a
point. Under one seed all of them served the same programs at the same times, so what is compared
are differences within seeds: they vary less than the figures themselves, and the intervals are
those of the differences.

    hypervolume       ∫₀^R max{S of the points with C ≤ c} dc / R, where R is the largest mean C of
                      any cell on this pool at this rate; 0..1, and 1 is every answer right at once
    speed_up          C of the baseline / C of the policy, geometric mean over seeds, at the point
                      of least mean C among those whose mean S is that of the baseline or better
    points            100 · (S of the policy − S of the baseline), at the point of largest mean S
                      among those whose mean C is that of the baseline or better

The points are picked by the very runs that they are then judged on, so with many of them the best
looks a little better than it is.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.scheduling.policy import PolicySettings
from chimera_train.simulate.metrics import t_interval
from chimera_train.simulate.settings import PLAIN

__all__ = ["BASELINES", "compare", "hypervolume", "policy_label"]

#: Kinds of policies that need no predictor, which others are compared with.
BASELINES = frozenset({"round_robin", "shortest_queue"})

_WORDS = {
    "load": "{}",
    "tau": "τ={}",
    "delta_s": "Δs={}",
    "upgrade": "{}",
    "ttft_target_ms": "≤{} ms",
    "overload": "{}",
    "reserve": "reserve {}",
    "latency_weight_per_s": "δ={}",
    "cost_weight": "λ={}",
    "aging": "aging {}",
    "window": "window {}",
}


def policy_label(policy: Mapping[str, Any], predictors: str = PLAIN) -> str:
    """A policy in a few words, such as ``chimera stjf inflight τ=0.5``.

    Kind, order, load and τ are always named, other settings where they are not the default, and
    ``predictors`` where they are those of an ablation.
    """
    defaults = _defaults()[policy["kind"]]
    words = [policy["kind"], policy["order"]]
    for name, form in _WORDS.items():
        if name in policy and (name in ("load", "tau") or policy[name] != defaults[name]):
            words.append(form.format(policy[name]))
    if predictors != PLAIN:
        words.append(f"({predictors})")
    return " ".join(words)


@functools.cache
def _defaults() -> dict[str, dict[str, Any]]:
    kinds = get_args(get_args(PolicySettings)[0])
    return {
        kind.model_fields["kind"].default: {
            name: field.default for name, field in kind.model_fields.items()
        }
        for kind in kinds
    }


def hypervolume(c: npt.NDArray[np.float64], s: npt.NDArray[np.float64], reference: float) -> float:
    """Share, 0..1, of [0, ``reference``] × [0, 1] that the points dominate; shapes (n,), (n,)."""
    area, best, at = 0.0, 0.0, 0.0
    for point in np.argsort(c):
        until = min(float(c[point]), reference)
        area += best * (until - at)
        best, at = max(best, float(s[point])), until
    return (area + best * (reference - at)) / reference


def compare(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Every policy's frontier, on every pool and at every rate.

    Args:
        runs: one row for each cell and seed: ``cell``, ``pool``, ``predictors``, ``rate_per_s``
            (may be None), ``policy`` (settings as JSON), ``seed``, ``latency_per_token_ms``,
            ``score``; every cell with the same seeds.

    Returns:
        One entry for each pool, rate, set of predictors and policy: ``pool``, ``predictors``,
        ``rate_per_s``, ``policy`` (settings without τ), ``cells``, ``hypervolume``, ``ci``, and
        ``against``, one entry for each other policy of a kind in ``BASELINES``: ``baseline`` (its
        cell), ``hypervolume_gain``, ``speed_up`` and ``points``, the cells where these two are
        reached (``speed_up_cell``, ``points_cell``) and ``ci``. What no point reaches is None.
    """
    result = []
    runs = runs.astype({"rate_per_s": float})  # None becomes NaN
    for (pool, _), panel in runs.groupby(["pool", "rate_per_s"], dropna=False, sort=False):
        rate_per_s = float(panel["rate_per_s"].iloc[0])
        cells = [_Cell.of(rows) for _, rows in panel.groupby("cell")]
        found = [float(cell.c.mean()) for cell in cells if np.isfinite(cell.c).all()]
        reference = max(found, default=1.0)
        families: dict[str, list[_Cell]] = {}
        for cell in cells:
            families.setdefault(json.dumps([cell.predictors, cell.family]), []).append(cell)
        volumes = {name: _volumes(family, reference) for name, family in families.items()}
        baselines = {
            name: family[0]
            for name, family in families.items()
            if family[0].family["kind"] in BASELINES and family[0].predictors == PLAIN
        }
        result += [
            {
                "pool": pool,
                "predictors": family[0].predictors,
                "rate_per_s": None if np.isnan(rate_per_s) else rate_per_s,
                "policy": family[0].family,
                "cells": [cell.number for cell in family],
                "hypervolume": float(volumes[name].mean()),
                "ci": {"hypervolume": t_interval(volumes[name].tolist())},
                "against": [
                    _against(family, volumes[name], baseline, volumes[other])
                    for other, baseline in baselines.items()
                    if other != name
                ],
            }
            for name, family in families.items()
        ]
    return result


@dataclass(frozen=True, slots=True)
class _Cell:
    number: int
    predictors: str
    family: dict[str, Any]
    c: npt.NDArray[np.float64]  # of every seed; infinite where every program was refused
    s: npt.NDArray[np.float64]

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "_Cell":
        rows = rows.sort_values("seed")
        policy = json.loads(rows["policy"].iloc[0])
        return cls(
            int(rows["cell"].iloc[0]),
            str(rows["predictors"].iloc[0]),
            {name: value for name, value in policy.items() if name != "tau"},
            rows["latency_per_token_ms"].fillna(np.inf).to_numpy(dtype=np.float64),
            rows["score"].to_numpy(dtype=np.float64),
        )


def _volumes(family: Sequence[_Cell], reference: float) -> npt.NDArray[np.float64]:
    c, s = np.array([cell.c for cell in family]), np.array([cell.s for cell in family])
    return np.array([hypervolume(c[:, k], s[:, k], reference) for k in range(c.shape[1])])


def _against(
    family: Sequence[_Cell],
    volumes: npt.NDArray[np.float64],
    baseline: _Cell,
    its_volumes: npt.NDArray[np.float64],
) -> dict[str, Any]:
    as_good = [
        cell for cell in family if cell.s.mean() >= baseline.s.mean() and np.isfinite(cell.c).all()
    ]
    as_fast = [cell for cell in family if cell.c.mean() <= baseline.c.mean()]
    faster = min(as_good, key=lambda cell: float(cell.c.mean()), default=None)
    better = max(as_fast, key=lambda cell: float(cell.s.mean()), default=None)
    gains = volumes - its_volumes
    logs = None if faster is None else np.log(baseline.c / faster.c)
    points = None if better is None else 100.0 * (better.s - baseline.s)
    log_interval = None if logs is None else t_interval(logs.tolist())
    return {
        "baseline": baseline.number,
        "hypervolume_gain": float(gains.mean()),
        "speed_up": None if logs is None else float(np.exp(logs.mean())),
        "speed_up_cell": None if faster is None else faster.number,
        "points": None if points is None else float(points.mean()),
        "points_cell": None if better is None else better.number,
        "ci": {
            "hypervolume_gain": t_interval(gains.tolist()),
            "speed_up": None if log_interval is None else np.exp(log_interval).tolist(),
            "points": None if points is None else t_interval(points.tolist()),
        },
    }

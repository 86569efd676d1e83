"""The figures of a simulated run, and their means and intervals over seeds.

Formulas, over requests r, and programs p with arrival a_p, end e_p, output tokens o_p, score s_p:

    latency_per_token_ms  C = mean of (e_p − a_p) / o_p
    score                 S = mean of s_p
    shed_share            share of the programs that were refused; s_p = 0, and none of the figures
                          of latency is about them
    latency_ms, latency_p50_ms, …  mean and percentiles of e_p − a_p
    on_time_utility       mean of (s_p − λ·cost_p)·[TTFT of p's first request ≤ τ] (SFS), with what
                          p really scored and cost; only where τ is given
    on_time_share         mean of [TTFT of p's first request ≤ τ]; likewise
    ttft_ms               mean over r of first token − arrival at the scheduler
    queue_ms              mean over r of first step's start − arrival at the scheduler
    makespan_ms           last e_p − first a_p
    preemptions           number of times any request lost its KV blocks
    restarts              number of times any request was begun again since its engine went down
    utilisation           of each engine: time with work in it / makespan
    program_share         of each engine: share of the programs
    extrapolated_share    of each engine: share of its steps that lie outside what its step-time
                          model was fitted on
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from chimera_train.simulate.outcome import Simulation

__all__ = ["FIGURES", "PER_ENGINE", "OnTime", "run_metrics", "summarise", "t_interval"]

FIGURES = (
    "latency_per_token_ms",
    "score",
    "shed_share",
    "on_time_utility",
    "on_time_share",
    "latency_ms",
    "latency_p50_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "ttft_ms",
    "queue_ms",
    "makespan_ms",
    "preemptions",
    "restarts",
)
PER_ENGINE = ("utilisation", "program_share", "extrapolated_share")

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class OnTime:
    """What counts as on time and what it is worth: τ, and λ per micro-dollar."""

    ttft_target_ms: float
    cost_weight: float


def run_metrics(simulation: Simulation, on_time: OnTime | None = None) -> dict[str, Any]:
    """The figures of one run; those of ``PER_ENGINE`` map engine → number.

    What has no value, such as the latency where every program was refused, is None.
    """
    programs, requests = simulation.programs, simulation.requests
    served = programs[programs["program_latency_ms"].notna()]
    latency_ms = served["program_latency_ms"].to_numpy()
    makespan_ms, p50, p95, p99 = None, None, None, None
    if len(served) > 0:
        ends_ms = served["arrival_ms"] + latency_ms
        makespan_ms = float(ends_ms.max() - programs["arrival_ms"].min())
        p50, p95, p99 = np.percentile(latency_ms, [50, 95, 99]).tolist()
    share = programs["engine"].value_counts(normalize=True)
    in_time = {}
    if on_time is not None:
        is_in_time = programs["ttft_ms"] <= on_time.ttft_target_ms
        utility = programs["score"] - on_time.cost_weight * programs["cost"]
        in_time = {
            "on_time_utility": float((utility * is_in_time).mean()),
            "on_time_share": float(is_in_time.mean()),
        }
    return {
        **in_time,
        "latency_per_token_ms": _mean(latency_ms / served["total_output_tokens"]),
        "score": float(programs["score"].mean()),
        "shed_share": 1.0 - len(served) / len(programs),
        "latency_ms": _mean(latency_ms),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_p99_ms": p99,
        "ttft_ms": _mean(requests["ttft_ms"]),
        "queue_ms": _mean(requests["queue_ms"]),
        "makespan_ms": makespan_ms,
        "preemptions": int(requests["preemptions"].sum()),
        "restarts": int(requests["restarts"].sum()),
        "utilisation": {
            e: busy / makespan_ms if makespan_ms else 0.0 for e, busy in simulation.busy_ms.items()
        },
        "extrapolated_share": {
            e: n / max(simulation.steps[e], 1) for e, n in simulation.extrapolated_steps.items()
        },
        "program_share": {e: float(share.get(e, 0.0)) for e in simulation.busy_ms},
    }


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the runs of one cell; ``ci`` has the 95 % t-intervals (None for a single run).

    Runs in which a figure has no value do not count for it; it is None if it has none in any.
    """
    values = {
        name: [run[name] for run in runs if run[name] is not None]
        for name in FIGURES
        if name in runs[0]
    }
    cell: dict[str, Any] = {name: _mean(of) for name, of in values.items()}
    for name in PER_ENGINE:
        cell[name] = {
            engine: float(np.mean([run[name][engine] for run in runs])) for engine in runs[0][name]
        }
    cell["ci"] = {name: t_interval(of) for name, of in values.items()}
    return cell


def t_interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % t-interval [low, high] of the mean; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    mean = float(np.mean(values))
    return [mean - half, mean + half]


def _mean(values: Sequence[float] | pd.Series | npt.NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) > 0 else None

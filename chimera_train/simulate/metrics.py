"""The figures of a simulated run, and their means and intervals over seeds.

Formulas, over requests r, and programs p with arrival a_p, end e_p, output tokens o_p, score s_p:

    latency_per_token_ms  C = mean of (e_p − a_p) / o_p
    score                 S = mean of s_p
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
from scipy import stats

from chimera_train.simulate.outcome import Simulation

__all__ = ["FIGURES", "PER_ENGINE", "OnTime", "run_metrics", "summarise", "t_interval"]

FIGURES = (
    "latency_per_token_ms",
    "score",
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
    """The figures of one run; those of ``PER_ENGINE`` map engine → number."""
    programs, requests = simulation.programs, simulation.requests
    latency_ms = programs["program_latency_ms"].to_numpy()
    makespan_ms = float(
        (programs["arrival_ms"] + programs["program_latency_ms"]).max()
        - programs["arrival_ms"].min()
    )
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
        "latency_per_token_ms": float((latency_ms / programs["total_output_tokens"]).mean()),
        "score": float(programs["score"].mean()),
        "latency_ms": float(latency_ms.mean()),
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "latency_p99_ms": p99,
        "ttft_ms": float(requests["ttft_ms"].mean()),
        "queue_ms": float(requests["queue_ms"].mean()),
        "makespan_ms": makespan_ms,
        "preemptions": int(requests["preemptions"].sum()),
        "restarts": int(requests["restarts"].sum()),
        "utilisation": {e: busy / makespan_ms for e, busy in simulation.busy_ms.items()},
        "extrapolated_share": {
            e: n / max(simulation.steps[e], 1) for e, n in simulation.extrapolated_steps.items()
        },
        "program_share": {e: float(share.get(e, 0.0)) for e in simulation.busy_ms},
    }


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the runs of one cell; ``ci`` has the 95 % t-intervals (None for a single run)."""
    figures = [name for name in FIGURES if name in runs[0]]
    cell: dict[str, Any] = {name: float(np.mean([run[name] for run in runs])) for name in figures}
    for name in PER_ENGINE:
        cell[name] = {
            engine: float(np.mean([run[name][engine] for run in runs])) for engine in runs[0][name]
        }
    cell["ci"] = {name: t_interval([run[name] for run in runs]) for name in figures}
    return cell


def t_interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % t-interval [low, high] of the mean; None for a single value."""
    n = len(values)
    if n < 2:
        return None
    half = float(stats.t.ppf((1 + _CONFIDENCE) / 2, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
    mean = float(np.mean(values))
    return [mean - half, mean + half]

"""The frontier plot: score against latency per token, one line per policy and rate."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from chimera_train.files import atomic_path

__all__ = ["plot_frontier", "policy_label"]


def policy_label(policy: Mapping[str, Any], *, with_tau: bool = True) -> str:
    """A policy in a few words, such as ``chimera stjf inflight τ=0.5``."""
    parts = [policy["kind"], policy["order"]]
    if policy["kind"] == "chimera":
        parts.append(policy["load"])
        if with_tau:
            parts.append(f"τ={policy['tau']}")
    return " ".join(parts)


def plot_frontier(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw C and S of every cell with their intervals as a PNG.

    Cells that differ in τ alone are one line, with τ written at its points.
    """
    lines: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for cell in cells:
        others = {name: value for name, value in cell["policy"].items() if name != "tau"}
        key = (cell["pool"], cell["rate_per_s"], *others.items())
        lines.setdefault(key, []).append(cell)
    pools = {cell["pool"] for cell in cells}

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, line in enumerate(lines.values()):
        line = sorted(line, key=lambda cell: float(cell["policy"].get("tau", math.nan)))
        first = line[0]
        label = policy_label(first["policy"], with_tau=False)
        if first["rate_per_s"] is not None:
            label += f", {first['rate_per_s']:g}/s"
        if len(pools) > 1:
            label += f", {first['pool']}"
        axes.errorbar(
            [cell["latency_per_token_ms"] for cell in line],
            [cell["score"] for cell in line],
            xerr=_half_widths(line, "latency_per_token_ms"),
            yerr=_half_widths(line, "score"),
            color=f"C{number % 10}",
            marker="osD^v<>P"[number // 10 % 8],
            capsize=2,
            label=label,
        )
        for cell in line:
            if "tau" in cell["policy"]:
                axes.annotate(
                    f"{cell['policy']['tau']}",
                    (cell["latency_per_token_ms"], cell["score"]),
                    textcoords="offset points",
                    xytext=(4, 4),
                    fontsize="x-small",
                )
    axes.set_xscale("log")
    axes.set_xlabel("C: program latency per output token (ms)")
    axes.set_ylabel("S: score")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _half_widths(line: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    intervals = [cell["ci"][name] for cell in line]
    return [0.0 if interval is None else (interval[1] - interval[0]) / 2 for interval in intervals]

"""The frontier plot: score against latency per token, one panel per rate, one line per policy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chimera_train.files import atomic_path
from chimera_train.simulate.frontier import policy_label

__all__ = ["plot_frontier"]


def plot_frontier(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw C and S of every cell with their intervals as a PNG, a panel for each pool and rate.

    Cells that differ in τ alone are one line, with τ written at its points.
    """
    panels: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Mapping[str, Any]]]] = {}
    colours: dict[tuple[Any, ...], str] = {}
    for cell in cells:
        policy = tuple((name, value) for name, value in cell["policy"].items() if name != "tau")
        panel = panels.setdefault((cell["pool"], cell["rate_per_s"]), {})
        panel.setdefault(policy, []).append(cell)
        colours.setdefault(policy, f"C{len(colours) % 10}")

    n_columns = min(len(panels), 3)
    n_rows = math.ceil(len(panels) / n_columns)
    figure = Figure(figsize=(1 + 4 * n_columns, 1 + 3.5 * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    several_pools = len({pool for pool, _ in panels}) > 1
    for axes, ((pool, rate_per_s), lines) in zip(grid.flat, panels.items(), strict=False):
        for policy, line in lines.items():
            _draw_line(axes, line, colours[policy])
        rate = "arrivals as given" if rate_per_s is None else f"{rate_per_s:g} programs/s"
        axes.set_title(f"{pool}\n{rate}" if several_pools else rate, fontsize="medium")
        axes.set_xlabel("C: latency per output token (ms)")
        axes.grid(alpha=0.3)
    for row in grid:
        row[0].set_ylabel("S: score")
    handles, labels = [], []
    for policy, colour in colours.items():
        handles.append(Line2D([], [], color=colour, marker="o"))
        labels.append(policy_label(dict(policy)))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def _draw_line(axes: Axes, line: Sequence[Mapping[str, Any]], colour: str) -> None:
    line = sorted(line, key=lambda cell: float(cell["policy"].get("tau", math.nan)))
    x = [cell["latency_per_token_ms"] for cell in line]
    y = [cell["score"] for cell in line]
    axes.plot(x, y, color=colour, marker="o", markersize=4)
    axes.errorbar(
        x,
        y,
        xerr=_half_widths(line, "latency_per_token_ms"),
        yerr=_half_widths(line, "score"),
        color=colour,
        linestyle="none",
        linewidth=0.8,
        alpha=0.5,
    )
    for cell in line:
        if "tau" in cell["policy"]:
            axes.annotate(
                f"τ={cell['policy']['tau']}",
                (cell["latency_per_token_ms"], cell["score"]),
                textcoords="offset points",
                xytext=(4, 4),
                fontsize="x-small",
                color=colour,
            )


def _half_widths(line: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    intervals = [cell["ci"][name] for cell in line]
    return [0.0 if interval is None else (interval[1] - interval[0]) / 2 for interval in intervals]

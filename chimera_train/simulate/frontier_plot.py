"""The frontier plot: score against latency per token, one panel per rate, one line per policy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from chimera_train.files import write_png
from chimera_train.simulate.frontier import policy_label
from chimera_train.simulate.panels import half_widths, panel_figure, panel_title

__all__ = ["plot_frontier"]


def plot_frontier(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw C and S of every cell with their intervals as a PNG, a panel for each pool and rate.

    Cells that differ in τ alone are one line, with τ written at its points.
    """
    panels: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Mapping[str, Any]]]] = {}
    colours: dict[tuple[Any, ...], str] = {}
    for cell in cells:
        rest = tuple((name, value) for name, value in cell["policy"].items() if name != "tau")
        policy = (cell["predictors"], rest)
        panel = panels.setdefault((cell["pool"], cell["rate_per_s"]), {})
        if cell["latency_per_token_ms"] is None:  # every program was refused
            continue
        panel.setdefault(policy, []).append(cell)
        colours.setdefault(policy, f"C{len(colours) % 10}")

    figure, grid = panel_figure(len(panels), sharey=True)
    several_pools = len({pool for pool, _ in panels}) > 1
    for axes, ((pool, rate_per_s), lines) in zip(grid, panels.items(), strict=True):
        for policy, line in lines.items():
            _draw_line(axes, line, colours[policy])
        axes.set_title(panel_title(pool if several_pools else None, rate_per_s), fontsize="medium")
        axes.set_xlabel("C: latency per output token (ms)")
        axes.grid(alpha=0.3)
    figure.supylabel("S: score")
    handles, labels = [], []
    for (predictors, rest), colour in colours.items():
        handles.append(Line2D([], [], color=colour, marker="o"))
        labels.append(policy_label(dict(rest), predictors))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize="small")
    write_png(figure, path)


def _draw_line(axes: Axes, line: Sequence[Mapping[str, Any]], colour: str) -> None:
    line = sorted(line, key=lambda cell: float(cell["policy"].get("tau", math.nan)))
    x = [cell["latency_per_token_ms"] for cell in line]
    y = [cell["score"] for cell in line]
    axes.plot(x, y, color=colour, marker="o", markersize=4)
    axes.errorbar(
        x,
        y,
        xerr=half_widths([cell["ci"]["latency_per_token_ms"] for cell in line]),
        yerr=half_widths([cell["ci"]["score"] for cell in line]),
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

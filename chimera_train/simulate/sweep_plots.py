"""Plots of a sweep beside the frontier: queue times by order, utilisation, figures over rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.patches import Patch

from chimera_train.files import write_png
from chimera_train.simulate.frontier import policy_label
from chimera_train.simulate.panels import half_widths, panel_figure, panel_title

__all__ = ["plot_over_rates", "plot_queue", "plot_utilisation"]


def plot_queue(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of every policy's queue time in each order; ``entries`` of ``queue_by_order``."""
    _plot_bars(
        [
            _Bars(
                entry["pool"],
                entry["rate_per_s"],
                policy_label({**entry["policy"], "order": "·"}, entry["predictors"]),
                {one["order"]: one["queue_ms"] for one in entry["orders"]},
                {one["order"]: one["ci"]["queue_ms"] for one in entry["orders"]},
            )
            for entry in entries
        ],
        "queue time (ms)",
        path,
    )


def plot_utilisation(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Bars of each engine's utilisation under every policy."""
    _plot_bars(
        [
            _Bars(
                cell["pool"],
                cell["rate_per_s"],
                policy_label(cell["policy"], cell["predictors"]),
                cell["utilisation"],
                {},
            )
            for cell in cells
        ],
        "utilisation",
        path,
    )


class _Bars(NamedTuple):
    """A group of bars, one for each name in ``values``."""

    pool: str
    rate_per_s: float | None
    label: str
    values: Mapping[str, float]
    intervals: Mapping[str, Sequence[float] | None]


def _plot_bars(groups: Sequence[_Bars], xlabel: str, path: Path) -> None:
    """A panel for each pool and rate, with its groups below each other."""
    panels: dict[tuple[str, float | None], list[_Bars]] = {}
    for group in groups:
        panels.setdefault((group.pool, group.rate_per_s), []).append(group)
    names = list(dict.fromkeys(name for group in groups for name in group.values))
    most = max(len(of_panel) for of_panel in panels.values())
    figure, grid = panel_figure(len(panels), height=max(3.5, 0.4 * most))
    several_pools = len({group.pool for group in groups}) > 1
    for axes, ((pool, rate_per_s), of_panel) in zip(grid, panels.items(), strict=True):
        for row, group in enumerate(of_panel):
            height = 0.8 / len(group.values)
            for i, (name, value) in enumerate(group.values.items()):
                axes.barh(
                    row + (i + 0.5) * height - 0.4,
                    value,
                    height,
                    color=f"C{names.index(name) % 10}",
                    xerr=half_widths([group.intervals.get(name)]),
                )
        axes.set_yticks(range(len(of_panel)), [group.label for group in of_panel])
        axes.tick_params(axis="y", labelsize="x-small")
        axes.invert_yaxis()
        axes.set_xlim(left=0)
        axes.set_xlabel(xlabel)
        axes.set_title(panel_title(pool if several_pools else None, rate_per_s), fontsize="medium")
    handles = [Patch(color=f"C{i % 10}") for i in range(len(names))]
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small")
    write_png(figure, path)


def plot_over_rates(figures: Sequence[Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Lines over the rates, a panel for each figure and pool; ``figures`` of ``over_rates``."""
    by_panel: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    colours: dict[str, str] = {}
    for curve in (curve for curves in figures for curve in curves):
        by_panel.setdefault((curve["figure"], curve["pool"]), []).append(curve)
        label = policy_label(curve["policy"], curve["predictors"])
        colours.setdefault(label, f"C{len(colours) % 10}")
    figure, panels = panel_figure(len(by_panel))
    several_pools = len({pool for _, pool in by_panel}) > 1
    handles: dict[str, Any] = {}
    for axes, ((name, pool), curves) in zip(panels, by_panel.items(), strict=True):
        for curve in curves:
            label = policy_label(curve["policy"], curve["predictors"])
            handles[label] = axes.errorbar(
                curve["rates_per_s"],
                curve["values"],
                yerr=half_widths(curve["ci"]["values"]),
                color=colours[label],
                marker="o",
                markersize=4,
            )
        if name.endswith("_ms") and all(min(curve["values"]) > 0 for curve in curves):
            axes.set_yscale("log")  # an overloaded policy is slower by orders of magnitude
        axes.set_title(f"{pool}\n{name}" if several_pools else name, fontsize="medium")
        axes.set_xlabel("programs/s")
        axes.grid(alpha=0.3)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize="small"
    )
    write_png(figure, path)

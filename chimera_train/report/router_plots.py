"""How good a router is: what its confidences are worth, how well it ranks, and what it gains."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from chimera_train.files import write_png
from chimera_train.simulate.panels import panel_figure

__all__ = ["draw_reliability", "plot_router"]


def plot_router(figures: Mapping[str, Any], path: Path) -> None:
    """Draw a PNG of the figures of ``router.judge.judge``.

    Panels: success by confidence, of each model; average precision with intervals beside the base
    rate; accuracy by mean cost beside random mixing and an oracle, where there is something to
    trade.
    """
    panels: list[Callable[[Mapping[str, Any], Axes], None]] = [_draw_calibration, _draw_precision]
    if figures["routing"]["curve"]:
        panels.append(_draw_routing)
    figure, grid = panel_figure(len(panels))
    for axes, draw in zip(grid, panels, strict=True):
        draw(figures, axes)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    write_png(figure, path)


def draw_reliability(reliability: Mapping[str, Any], error: float, axes: Axes) -> None:
    """Success by confidence, of each model, and the calibration error of all."""
    axes.plot((0, 1), (0, 1), color="0.4", linewidth=0.8)
    for model, bins in reliability.items():
        axes.plot(bins["confidence"], bins["success"], marker="o", markersize=3, label=model)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("confidence")
    axes.set_ylabel("share of success")
    axes.set_title(f"calibration (ECE {error:.3f})", fontsize="medium")


def _draw_calibration(figures: Mapping[str, Any], axes: Axes) -> None:
    draw_reliability(figures["reliability"], figures["ece"]["calibrated"], axes)


def _draw_precision(figures: Mapping[str, Any], axes: Axes) -> None:
    models = [*figures["ap"]]
    rows = range(len(models))
    values = [figures["ap"][model] for model in models]
    # An interval of resamples need not hold the figure itself, and may be missing.
    ends = [
        figures["ap_ci"][model] or (value, value)
        for model, value in zip(models, values, strict=True)
    ]
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)],
    ]
    axes.errorbar(values, rows, xerr=errors, fmt="o", markersize=4, label="router")
    axes.plot(
        [figures["base_rate"][model] for model in models],
        rows,
        linestyle="none",
        marker="|",
        markersize=12,
        color="0.4",
        label="base rate",
    )
    axes.set_yticks(rows, models)
    axes.tick_params(axis="y", labelsize="x-small")
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("average precision")
    axes.set_title(f"ranking (macro mAP {figures['map_macro']:.3f})", fontsize="medium")


def _draw_routing(figures: Mapping[str, Any], axes: Axes) -> None:
    routing = figures["routing"]
    curve = routing["curve"]
    styles = {"oracle": ":", "routed": "-", "mixed": "--"}
    for name, style in styles.items():
        axes.plot(curve["cost"], curve[name], linestyle=style, label=name)
    axes.set_xlabel(f"mean cost of a question ({routing['unit'].replace('_', ' ')})")
    axes.set_ylabel("accuracy")
    gain = figures["routing_gain"]
    told = "" if gain is None else f" ({gain:.1%} of the oracle's)"
    axes.set_title(f"routing gain{told}", fontsize="medium")

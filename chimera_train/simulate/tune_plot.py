"""What ``simulate tune`` tried: the figure to improve against each bounded one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from chimera_train.files import write_png
from chimera_train.simulate.objective import ObjectiveSettings
from chimera_train.simulate.panels import half_widths, panel_figure

__all__ = ["plot_tune"]


def plot_tune(document: Mapping[str, Any], objective: ObjectiveSettings, path: Path) -> None:
    """Draw a PNG with a panel for each bounded figure; without bounds, against C.

    Args:
        document: of ``tune_results.tune_document``.
        objective: what was asked.
        path: of the PNG.
    """
    beside = list(objective.subject_to) or ["latency_per_token_ms"]
    figure, panels = panel_figure(len(beside))
    for axes, name in zip(panels, beside, strict=True):
        _draw(axes, name, document, objective)
    write_png(figure, path)


def _draw(axes: Axes, name: str, document: Mapping[str, Any], objective: ObjectiveSettings) -> None:
    kinds = dict.fromkeys(one["policy"]["kind"] for one in document["tried"])
    for kind in kinds:
        of_kind = [one for one in document["tried"] if one["policy"]["kind"] == kind]
        axes.scatter(*_points(of_kind, name, objective), s=14, alpha=0.7, label=kind)
    axes.plot(
        *_points(document["frontier"], name, objective),
        linestyle="none",
        marker="o",
        markersize=8,
        markerfacecolor="none",
        color="black",
        label="frontier",
    )
    validated = document["validated"]
    xerr, yerr = half_widths([validated["ci"][axis] for axis in (name, objective.figure)])
    (x,), (y,) = _points([validated], name, objective)
    axes.errorbar(
        x,
        y,
        xerr=xerr,
        yerr=yerr,
        fmt="*",
        markersize=12,
        color="crimson",
        label=f"answer, on {validated['seeds']} other seeds",
    )
    bound = objective.subject_to.get(name)
    for end in () if bound is None else (bound.min, bound.max):
        if end is not None:
            axes.axvline(end, color="grey", linestyle="--", linewidth=0.8)
    axes.set_xlabel(name)
    axes.set_ylabel(objective.figure)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _points(
    entries: list[Mapping[str, Any]], name: str, objective: ObjectiveSettings
) -> tuple[list[float], list[float]]:
    return [one[name] for one in entries], [one[objective.figure] for one in entries]

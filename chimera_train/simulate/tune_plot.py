"""What ``simulate tune`` tried: the figure to improve against each bounded one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chimera_train.files import atomic_path
from chimera_train.simulate.objective import ObjectiveSettings

__all__ = ["plot_tune"]


def plot_tune(document: Mapping[str, Any], objective: ObjectiveSettings, path: Path) -> None:
    """Draw a PNG with a panel for each bounded figure; without bounds, against C.

    Args:
        document: of ``tune_results.tune_document``.
        objective: what was asked.
        path: of the PNG.
    """
    beside = list(objective.subject_to) or ["latency_per_token_ms"]
    figure = Figure(figsize=(1 + 5 * len(beside), 4.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(beside), squeeze=False)[0], beside, strict=True):
        _draw(axes, name, document, objective)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


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
    ends = [validated["ci"][axis] for axis in (name, objective.figure)]
    (x,), (y,) = _points([validated], name, objective)
    axes.errorbar(
        x,
        y,
        xerr=(ends[0][1] - ends[0][0]) / 2,
        yerr=(ends[1][1] - ends[1][0]) / 2,
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

"""How well lengths are predicted: against the real ones, by quantile, by stage, and by how many."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from chimera_train.files import write_png
from chimera_train.length.metrics import coverage
from chimera_train.simulate.panels import panel_figure

__all__ = ["draw_lengths", "draw_quantiles", "plot_length"]

_BASELINES = {"prompt_length": "v", "stage_median": "s"}


def plot_length(
    judged: pd.DataFrame,
    figures: Mapping[str, Any],
    path: Path,
    curve: Mapping[str, Any] | None = None,
) -> None:
    """Draw a PNG of the predictions on unseen questions.

    Panels: ŷ against the realised length; the share of lengths below each predicted quantile; the
    Kendall-τ distance by stage, with intervals; and the learning curve where one is given. What a
    ranker predicts are no tokens, so it lacks the first two.

    Args:
        judged: rows as ``judge`` takes them; every column with a number between 0 and 1 for its
            name is taken for that quantile.
        figures: of ``judge``.
        path: of the PNG.
        curve: of ``learning_curve``.
    """
    quantiles = sorted(filter(_is_quantile, map(str, judged.columns)), key=float)
    panels: list[Callable[[Axes], None]] = []
    if quantiles:
        panels += [partial(draw_lengths, judged), partial(draw_quantiles, judged, quantiles)]
    panels.append(partial(_draw_stages, figures))
    if curve is not None:
        panels.append(partial(_draw_curve, curve))
    figure, grid = panel_figure(len(panels))
    for axes, draw in zip(grid, panels, strict=True):
        draw(axes)
        axes.grid(alpha=0.3)
    handles, labels = grid[-1].get_legend_handles_labels()  # the same as of the other distances
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    write_png(figure, path)


def draw_lengths(judged: pd.DataFrame, axes: Axes) -> None:
    """Predicted against realised; nothing is drawn at 1, since a logarithm of 0 is nowhere."""
    realised, predicted = (
        np.maximum(judged[name].to_numpy(np.float64), 1) for name in ("target_tokens", "predicted")
    )
    ends = (min(realised.min(), predicted.min()), max(realised.max(), predicted.max(), 2))
    axes.hexbin(
        realised,
        predicted,
        gridsize=40,
        xscale="log",
        yscale="log",
        bins="log",
        mincnt=1,
        cmap="Blues",
        linewidths=0.1,
    )
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    axes.set_xlabel("realised length (tokens)")
    axes.set_ylabel("predicted median (tokens)")
    axes.set_title("predicted against realised", fontsize="medium")


def draw_quantiles(judged: pd.DataFrame, quantiles: list[str], axes: Axes) -> None:
    """The share of lengths below each of the predicted ``quantiles``."""
    realised = judged["target_tokens"].to_numpy(np.float64)
    achieved = [coverage(realised, judged[q].to_numpy(np.float64)) for q in quantiles]
    axes.plot((0, 1), (0, 1), color="0.4", linewidth=0.8)
    axes.plot(list(map(float, quantiles)), achieved, marker="o", markersize=4)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_xlabel("predicted quantile")
    axes.set_ylabel("share of lengths below it")
    axes.set_title("calibration", fontsize="medium")


def _draw_stages(figures: Mapping[str, Any], axes: Axes) -> None:
    distance, baselines = figures["kendall_distance"], figures["baseline_distances"]
    stages = sorted(distance["per_stage"], key=_numbers_by_value)
    intervals = distance["intervals"]
    ends = [distance["ci"], intervals["within_cell"]]
    ends += [intervals["per_stage"][stage] for stage in stages]
    rows = list(range(len(ends)))
    x = _by_stage(distance, stages)
    # An interval of resamples need not hold the figure itself.
    errors = [
        [max(0.0, value - low) for value, (low, _) in zip(x, ends, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(x, ends, strict=True)],
    ]
    axes.errorbar(x, rows, xerr=errors, fmt="o", markersize=4, label="predicted")
    for name, marker in _BASELINES.items():
        axes.plot(
            _by_stage(baselines[name], stages),
            rows,
            linestyle="none",
            marker=marker,
            markersize=4,
            label=name.replace("_", " "),
        )
    axes.axvline(0.5, color="grey", linestyle="--", linewidth=0.8)
    axes.set_yticks(rows, ["all", "within a cell", *stages])
    axes.tick_params(axis="y", labelsize="x-small")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("Kendall-τ distance")
    axes.set_title("by stage", fontsize="medium")


def _by_stage(distances: Mapping[str, Any], stages: Sequence[str]) -> list[float]:
    of_stages = [distances["per_stage"][stage] for stage in stages]
    return [distances["overall"], distances["within_cell"], *of_stages]


def _numbers_by_value(name: str) -> list[tuple[str, int]]:
    """Sorts step10 behind step9."""
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", name)]


def _draw_curve(curve: Mapping[str, Any], axes: Axes) -> None:
    points = curve["points"]
    programs = [point["programs"] for point in points]
    for point in points:
        axes.plot(
            [point["programs"]] * len(point["draws"]),
            point["draws"],
            linestyle="none",
            marker=".",
            color="C0",
            alpha=0.4,
        )
    for name in ("kendall_distance", *_BASELINES):
        label = "predicted" if name == "kendall_distance" else name.replace("_", " ")
        axes.plot(
            programs, [point[name] for point in points], marker="o", markersize=4, label=label
        )
    if curve["enough_programs"] is not None:
        axes.axvline(curve["enough_programs"], color="grey", linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(programs, [f"{n:.0f}" for n in programs])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("training programs")
    axes.set_ylabel("Kendall-τ distance")
    axes.set_title("learning curve", fontsize="medium")


def _is_quantile(name: str) -> bool:
    try:
        return 0 < float(name) < 1
    except ValueError:
        return False

"""The picture of an endpoint's calibration: mean TTFT against arrival rate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from chimera_train.files import atomic_path
from chimera_train.predict.lps import mean_wait_ms

__all__ = ["plot_endpoint"]


def plot_endpoint(path: Path, document: Mapping[str, Any]) -> None:
    """Write a PNG of the measured loads, saturated ones hollow, and the fitted curve up to μ."""
    loads = document["loads"]
    mu, k, lowest = document["mu_per_s"], document["k"], loads[0]
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        yscale="log",
        xlabel="arrival rate (requests/s)",
        ylabel="mean TTFT (ms)",
        title=f"limited processor sharing: μ = {mu:.4g}/s, k = {k}",
    )
    rate = np.linspace(lowest["rate_per_s"], mu, 400)[:-1]
    floor_ms = lowest["predicted_ttft_ms"] - mean_wait_ms(lowest["rate_per_s"], mu, k)
    axes.plot(rate, floor_ms + mean_wait_ms(rate, mu, k), color="#0072b2", label="fitted")
    axes.axvline(mu, color="0.4", linewidth=0.8, linestyle="--")
    for saturated, face, label in ((False, "#d55e00", "measured"), (True, "none", "saturated")):
        mine = [load for load in loads if load["saturated"] == saturated]
        if mine:
            axes.scatter(
                [load["rate_per_s"] for load in mine],
                [load["ttft_ms"] for load in mine],
                facecolors=face,
                edgecolors="#d55e00",
                label=label,
                zorder=3,
            )
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)

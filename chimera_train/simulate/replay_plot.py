"""The picture of a replay: predicted against measured, for each kind of latency."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from chimera_train.files import write_png
from chimera_train.simulate.replay import MEASURED

__all__ = ["plot_replay"]


def plot_replay(path: Path, predicted: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Write a PNG with one log-log panel for each of ``MEASURED`` that was measured.

    Requests on the diagonal are predicted exactly.
    """
    names = [name for name in MEASURED if name in measured]
    figure = Figure(figsize=(4.5 * len(names), 4.5), layout="constrained")
    for number, name in enumerate(names, 1):
        label = name.removesuffix("_ms").upper()
        axes = figure.add_subplot(
            1,
            len(names),
            number,
            xscale="log",
            yscale="log",
            xlabel=f"measured {label} (ms)",
            ylabel=f"predicted {label} (ms)",
        )
        axes.scatter(measured[name], predicted[name], s=8, linewidths=0, color="#0072b2")
        ends = (measured[name].min(), measured[name].max())
        axes.plot(ends, ends, color="0.4", linewidth=0.8)
    write_png(figure, path, dpi=150)

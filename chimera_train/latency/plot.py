"""The picture of a calibration: predicted against measured step time."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from chimera_train.files import write_png
from chimera_train.latency.calibrate import Calibration
from chimera_train.latency.fit import REGIMES, regimes

__all__ = ["plot_calibration"]

_COLOURS = {"decode_only": "#0072b2", "prefill_only": "#d55e00", "mixed": "#009e73"}


def plot_calibration(path: Path, calibration: Calibration, frame: pd.DataFrame) -> None:
    """Write a PNG of held-out predictions against the measurements in ``frame``, log-log.

    Steps on the diagonal are predicted exactly. Mixed ones are drawn first, so that they do not
    cover the few others of a profile.
    """
    document = calibration.document
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot(
        xscale="log",
        yscale="log",
        aspect="equal",
        xlabel="measured step time (ms)",
        ylabel="predicted step time, held out (ms)",
        title=f"{document['kind']}, held-out MAPE {document['mape']['overall']:.1f} %",
    )
    measured = frame["step_ms"].to_numpy()
    regime = regimes(frame)
    for index, name in reversed(list(enumerate(REGIMES))):
        mine = regime == index
        if mine.any():
            axes.scatter(
                measured[mine],
                calibration.predicted_ms[mine],
                s=8,
                linewidths=0,
                color=_COLOURS[name],
                label=f"{name.replace('_', '-')} ({int(mine.sum())})",
            )
    ends = (measured.min(), measured.max())
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    axes.legend()
    write_png(figure, path, dpi=150)

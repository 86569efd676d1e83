"""The distribution of program lengths by model (Chimera, Figure 4)."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from chimera_train.files import write_png
from chimera_train.traces.store import Traces

__all__ = ["plot_lengths"]


def plot_lengths(traces: Traces, path: Path) -> None:
    """Draw, for each model, which share of its programs is at most x output tokens long (PNG).

    A cumulative curve instead of a histogram: it needs no bin width, heavy tails stay visible, and
    medians can be read off at one half.
    """
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for model, programs in traces.programs.groupby("model"):
        lengths = np.sort(programs["total_output_tokens"].to_numpy())
        share = np.arange(1, len(lengths) + 1) / len(lengths)
        label = f"{model}: mean {lengths.mean():.0f}, std {lengths.std():.0f}"
        axes.step(lengths, share, where="post", label=label)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("output tokens of a program")
    axes.set_ylabel("share of programs")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    write_png(figure, path)

"""What the gateway predicted against what happened."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from chimera_train.errors import DataError
from chimera_train.files import write_png
from chimera_train.length.judge import QUANTILES
from chimera_train.live.evaluate import Evaluated
from chimera_train.report.length_plots import draw_lengths, draw_quantiles
from chimera_train.report.router_plots import draw_reliability
from chimera_train.simulate.panels import panel_figure

__all__ = ["plot_live"]


def plot_live(live: Evaluated, path: Path) -> None:
    """Draw a PNG, as far as the log and the outcomes go.

    Panels: predicted against realised lengths; the share of lengths below each predicted quantile;
    success by the router's confidence.

    Raises:
        DataError: there is nothing to draw.
    """
    panels: list[Callable[[Axes], None]] = []
    lengths = live.lengths
    if not lengths.empty:
        panels.append(partial(draw_lengths, lengths))
    quantiles = list(map(str, QUANTILES))
    with_quantiles: pd.DataFrame = lengths.dropna(subset=quantiles)
    if not with_quantiles.empty:
        panels.append(partial(draw_quantiles, with_quantiles, quantiles))
    router = live.figures["router"]
    if router is not None:
        panels.append(partial(draw_reliability, router["reliability"], router["ece"]))
    if not panels:
        raise DataError("Nothing was predicted in this log, so there is nothing to draw.")
    figure, grid = panel_figure(len(panels))
    for axes, draw in zip(grid, panels, strict=True):
        draw(axes)
        axes.grid(alpha=0.3)
    if router is not None:
        grid[-1].legend(fontsize="x-small")
    write_png(figure, path)

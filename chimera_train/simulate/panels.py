"""What the plots of simulations have in common: a figure of panels, their titles, their errors."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["half_widths", "panel_figure", "panel_title"]


def panel_figure(n: int, *, sharey: bool = False, height: float = 3.5) -> tuple[Figure, list[Axes]]:
    """A figure of ``n`` panels of ``height`` inches in rows of three, and the panels."""
    n_columns = min(n, 3)
    n_rows = math.ceil(n / n_columns)
    figure = Figure(figsize=(1 + 4 * n_columns, 1 + height * n_rows), layout="constrained")
    grid = figure.subplots(n_rows, n_columns, sharey=sharey, squeeze=False)
    for axes in grid.flat[n:]:
        axes.set_visible(False)
    return figure, list(grid.flat[:n])


def panel_title(pool: str | None, rate_per_s: float | None) -> str:
    """The rate, below the pool where there are several."""
    rate = "arrivals as given" if rate_per_s is None else f"{rate_per_s:g} programs/s"
    return rate if pool is None else f"{pool}\n{rate}"


def half_widths(intervals: Sequence[Sequence[float] | None]) -> list[float]:
    """Half of each interval [low, high]; 0 where there is none."""
    return [0.0 if ends is None else (ends[1] - ends[0]) / 2 for ends in intervals]

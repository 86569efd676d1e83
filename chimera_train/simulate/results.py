"""Writing what a sweep found: JSON for tools, CSV and Parquet for analysis, and the plot."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from chimera_train import __version__
from chimera_train.files import atomic_path, write_json, write_text
from chimera_train.simulate.breakdown import OVER_RATES, ablations, over_rates, queue_by_order
from chimera_train.simulate.frontier import policy_label
from chimera_train.simulate.frontier_plot import plot_frontier
from chimera_train.simulate.metrics import FIGURES
from chimera_train.simulate.settings import PLAIN, SweepSettings
from chimera_train.simulate.sweep import SweepResult
from chimera_train.simulate.sweep_plots import plot_over_rates, plot_queue, plot_utilisation

__all__ = ["RESULTS_SCHEMA", "figures_by_cell", "write_cells", "write_programs", "write_sweep"]

RESULTS_SCHEMA = 1


def write_sweep(result: SweepResult, settings: SweepSettings, directory: Path) -> list[Path]:
    """Write the tables, the plots that have something to show and, last, ``cells.json``."""
    names = ("cells.csv", "runs.parquet", "frontier.png", "utilisation.png")
    files = [directory / name for name in names]
    write_cells(result.cells, files[0])
    _write_parquet(result.runs, files[1])
    plot_frontier([cell for cell in result.cells if cell["predictors"] == PLAIN], files[2])
    plot_utilisation(result.cells, files[3])
    by_ablation = ablations(result.runs)
    if by_ablation:
        files.append(directory / "ablation.png")
        compared = {one[name] for one in by_ablation for name in ("cell", "plain_cell")}
        plot_frontier([result.cells[cell] for cell in sorted(compared)], files[-1])
    by_order = queue_by_order(result.runs)
    if by_order:
        files.append(directory / "queue.png")
        plot_queue(by_order, files[-1])
    rates = [over_rates(result.runs, figure) for figure in OVER_RATES if figure in result.runs]
    rates = [curves for curves in rates if curves]
    if rates:
        files.append(directory / "rates.png")
        plot_over_rates(rates, files[-1])
    path = directory / "cells.json"
    write_json(
        path,
        {
            "schema": RESULTS_SCHEMA,
            "tool_version": __version__,
            "settings": settings.model_dump(mode="json"),
            "cells": result.cells,
            "frontier": result.frontier,
            "ablations": by_ablation,
            "queue_by_order": by_order,
            "over_rates": list(itertools.chain(*rates)),
            "warnings": result.warnings,
        },
    )
    return [*files, path]


def write_cells(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a CSV with a row for each of ``cells``, the ends of intervals as ``*_ci_low|high``."""
    write_text(path, pd.json_normalize([_flat(cell) for cell in cells]).to_csv(index=False))


def figures_by_cell(cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The figures of every cell under a readable name, for tracking."""
    named = {}
    for number, cell in enumerate(cells):
        name = f"{number} {policy_label(cell['policy'], cell['predictors'])}"
        if cell["rate_per_s"] is not None:
            name += f" {cell['rate_per_s']:g} per s"
        named[name] = {f: cell[f] for f in FIGURES if cell.get(f) is not None}
    return named


def write_programs(programs: pd.DataFrame, directory: Path) -> Path:
    """Write the programs of ``run_cell`` as ``programs.parquet``."""
    path = directory / "programs.parquet"
    _write_parquet(programs, path)
    return path


def _flat(cell: Mapping[str, Any]) -> dict[str, Any]:
    ends = {
        f"{name}_{end}": interval[i]
        for name, interval in cell["ci"].items()
        if interval is not None
        for i, end in enumerate(("ci_low", "ci_high"))
    }
    return {**{key: value for key, value in cell.items() if key != "ci"}, **ends}


def _write_parquet(frame: pd.DataFrame, path: Path) -> None:
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary, compression="zstd", index=False)

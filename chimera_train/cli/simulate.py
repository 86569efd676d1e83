"""``chimera-train simulate``: a pool under policies, rates and seeds, before anyone runs it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chimera_train.cli.common import JsonOption, QuietOption, TrackOption, tracked
from chimera_train.output import Output, table

if TYPE_CHECKING:
    from chimera_train.simulate.sweep import SweepResult

__all__ = ["register"]

ConfigOption = Annotated[Path, typer.Option("--config", help="Sweep file (YAML).")]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", help="Directory for the results; without it none is written."),
]


def register(app: typer.Typer) -> None:
    """Add ``simulate run`` and ``simulate sweep``."""
    simulate = typer.Typer(help="Simulate a pool under policies.", no_args_is_help=True)
    simulate.command("run")(run)
    simulate.command("sweep")(sweep)
    app.add_typer(simulate, name="simulate")


def run(
    config: ConfigOption,
    out: OutOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate one pool under one policy at one rate; --out also keeps every program."""
    from chimera_train.config import load_yaml
    from chimera_train.simulate.results import write_programs, write_sweep
    from chimera_train.simulate.settings import SweepSettings
    from chimera_train.simulate.sweep import run_cell

    output = Output(as_json=as_json, quiet=quiet)
    settings = load_yaml(config, SweepSettings)
    result, programs = run_cell(settings)
    files = []
    if out is not None:
        files = [write_programs(programs, out), *write_sweep(result, settings, out)]
    _report(output, result, files)


def sweep(
    config: ConfigOption,
    out: OutOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate every combination of pools, policies and rates; --out adds the frontier plot."""
    from chimera_train.config import load_yaml
    from chimera_train.simulate.results import write_sweep
    from chimera_train.simulate.settings import SweepSettings
    from chimera_train.simulate.sweep import sweep as run_sweep

    output = Output(as_json=as_json, quiet=quiet)
    settings = load_yaml(config, SweepSettings)
    with tracked(track, "simulate", {"config": config, "seeds": settings.seeds}) as run:
        with output.progress() as progress:
            task = progress.add_task("simulating", total=None, note="")
            result = run_sweep(
                settings, lambda done, total: progress.update(task, completed=done, total=total)
            )
        files = [] if out is None else write_sweep(result, settings, out)
        if run is not None:
            from chimera_train.simulate.results import figures_by_cell

            run.metrics(figures_by_cell(result.cells))
            for path in files:
                run.artifact(path)
    _report(output, result, files)


def _report(output: Output, result: "SweepResult", files: list[Path]) -> None:
    from chimera_train.simulate.frontier import policy_label

    for warning in result.warnings:
        output.warn(warning)
    columns = ["policy", "rate/s", "C ms/token", "S", "latency ms", "p95 ms", "TTFT ms", "queue ms"]
    figures = ["latency_per_token_ms", "score", "latency_ms", "latency_p95_ms", "ttft_ms"]
    rows: list[list[Any]] = [
        [policy_label(cell["policy"]), cell["rate_per_s"]]
        + [cell[figure] for figure in [*figures, "queue_ms"]]
        for cell in result.cells
    ]
    output.result(
        {
            "cells": result.cells,
            "warnings": result.warnings,
            "files": [str(path) for path in files],
        },
        table(columns, rows),
        *(f"wrote {path}" for path in files),
    )

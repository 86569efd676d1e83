"""``chimera-train simulate``: a pool before anyone runs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from chimera_train.cli.common import JsonOption, QuietOption, TrackOption, tracked
from chimera_train.cli.replay import replay
from chimera_train.cli.tune import tune
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
    """Add ``simulate run``, ``sweep``, ``tune`` and ``replay``."""
    simulate = typer.Typer(help="Simulate a pool under policies.", no_args_is_help=True)
    simulate.command("run")(run)
    simulate.command("sweep")(sweep)
    simulate.command("tune")(tune)
    simulate.command("replay")(replay)
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
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Directory for the results. Each run is kept there once it is finished: start a"
            " sweep that was stopped again, and only what is missing or has changed is simulated.",
        ),
    ] = None,
    backend: Annotated[
        Literal["local", "ray"],
        typer.Option("--backend", help="Processes of this machine (n_jobs), or a Ray cluster."),
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            help="A running Ray cluster, such as 'auto' or ray://HOST:10001; without it one of"
            " n_jobs CPUs runs on this machine meanwhile.",
        ),
    ] = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Simulate every combination of pools, policies and rates; --out adds the frontier plot."""
    import functools

    from chimera_train.config import load_yaml
    from chimera_train.errors import ConfigError
    from chimera_train.simulate.backends import run_locally, run_on_ray
    from chimera_train.simulate.results import write_sweep
    from chimera_train.simulate.settings import SweepSettings
    from chimera_train.simulate.sweep import sweep as run_sweep

    output = Output(as_json=as_json, quiet=quiet)
    settings = load_yaml(config, SweepSettings)
    if backend == "ray":
        backend_run = functools.partial(run_on_ray, n_jobs=settings.n_jobs, address=ray_address)
    elif ray_address is not None:
        raise ConfigError("--ray-address is for --backend ray: give both or neither.")
    else:
        backend_run = functools.partial(run_locally, n_jobs=settings.n_jobs)
    with tracked(track, "simulate", {"config": config, "seeds": settings.seeds}) as run:
        with output.progress() as progress:
            task = progress.add_task("simulating", total=None, note="")
            result = run_sweep(
                settings,
                lambda done, total: progress.update(task, completed=done, total=total),
                keep_in=out,
                run=backend_run,
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
    if result.resumed:
        output.info(f"{result.resumed} of {len(result.runs)} runs were finished before")
    columns = ["policy", "rate/s", "C ms/token", "S", "latency ms", "p95 ms", "TTFT ms", "queue ms"]
    figures = ["latency_per_token_ms", "score", "latency_ms", "latency_p95_ms", "ttft_ms"]
    figures += ["queue_ms"]
    if any(cell["restarts"] for cell in result.cells):
        columns += ["restarts"]
        figures += ["restarts"]
    rows: list[list[Any]] = [
        [policy_label(cell["policy"], cell["predictors"]), cell["rate_per_s"]]
        + [cell[figure] for figure in figures]
        for cell in result.cells
    ]
    output.result(
        {
            "cells": result.cells,
            "frontier": result.frontier,
            "resumed": result.resumed,
            "warnings": result.warnings,
            "files": [str(path) for path in files],
        },
        table(columns, rows),
        *_frontier_report(result),
        *(f"wrote {path}" for path in files),
    )


def _frontier_report(result: "SweepResult") -> list[Any]:
    from chimera_train.simulate.frontier import policy_label

    def tau(cell: int | None) -> str:
        policy = {} if cell is None else result.cells[cell]["policy"]
        return f"at τ={policy['tau']}" if "tau" in policy else ""

    rows = [
        [
            policy_label(entry["policy"], entry["predictors"]),
            entry["rate_per_s"],
            policy_label(result.cells[against["baseline"]]["policy"]),
            _with_interval(against, "speed_up"),
            tau(against["speed_up_cell"]),
            _with_interval(against, "points"),
            tau(against["points_cell"]),
            _with_interval(against, "hypervolume_gain"),
        ]
        for entry in result.frontier
        for against in entry["against"]
    ]
    if not rows:
        return []
    columns = ["policy", "rate/s", "against", "speed-up, S as good", ""]
    return ["", table([*columns, "points of S, C as low", "", "hypervolume gain"], rows)]


def _with_interval(values: Mapping[str, Any], name: str) -> str | None:
    if values[name] is None:
        return None
    interval = values["ci"][name]
    ends = "" if interval is None else " [{:.3g}, {:.3g}]".format(*interval)
    return f"{values[name]:.3g}{ends}"

"""``chimera-train evaluate``: the figures of fitted predictors on other data."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import (
    JsonOption,
    QuietOption,
    TracesOption,
    TrackOption,
    plot_option,
    tracked,
)
from chimera_train.cli.length_figures import length_summary
from chimera_train.cli.router_figures import router_summary
from chimera_train.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = typer.Typer(help="Judge fitted predictors on other data.", no_args_is_help=True)
    group.command()(length)
    group.command()(router)
    app.add_typer(group, name="evaluate")


def length(
    model: Annotated[Path, typer.Option("--model", help="Directory of fit length.")],
    traces: TracesOption,
    plot: Annotated[Path | None, plot_option("--plot", "the figures")] = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """The figures of fit length for a fitted directory, on questions that it was not fitted on."""
    from chimera_train.length.evaluate import evaluate_length
    from chimera_train.traces.store import load_traces

    output = Output(as_json=as_json, quiet=quiet)
    judged, metrics = evaluate_length(model, load_traces(traces), output)
    if plot is not None:
        from chimera_train.report.length_plots import plot_length

        plot_length(judged, metrics, plot)
    with tracked(track, "evaluate_length", {"model": str(model), "traces": str(traces)}) as run:
        if run is not None:
            run.metrics(metrics)
            if plot is not None:
                run.artifact(plot)
    output.result(metrics, *length_summary(metrics))


def router(
    router: Annotated[Path, typer.Option("--router", "--model", help="Directory of fit router.")],
    traces: TracesOption,
    plot: Annotated[Path | None, plot_option("--plot", "the figures")] = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """The figures of fit router for a fitted router, on questions that it was not fitted on."""
    from chimera_train.router.evaluate import evaluate_router
    from chimera_train.traces.store import load_traces

    output = Output(as_json=as_json, quiet=quiet)
    metrics = evaluate_router(router, load_traces(traces), output)
    if plot is not None:
        from chimera_train.report.router_plots import plot_router

        plot_router(metrics, plot)
    with tracked(track, "evaluate_router", {"router": str(router), "traces": str(traces)}) as run:
        if run is not None:
            run.metrics(metrics)
            if plot is not None:
                run.artifact(plot)
    output.result(metrics, *router_summary(metrics))

"""``chimera-train evaluate``: the figures of fitted predictors on other data."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import (
    JsonOption,
    ParamsOption,
    QuietOption,
    TracesOption,
    TrackOption,
    plot_option,
    settings_from,
    tracked,
)
from chimera_train.cli.length_figures import length_summary
from chimera_train.cli.router_figures import router_summary
from chimera_train.output import Output

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = typer.Typer(help="Judge predictors on other data, or live.", no_args_is_help=True)
    group.command()(length)
    group.command()(router)
    group.command()(live)
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


def live(
    decisions: Annotated[
        Path, typer.Option("--decisions", help="Decision log: the directory, or one of its files.")
    ],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="The bundle that was served: what it expects.")
    ] = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", help="Traces it was fitted on: drift against them.")
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option("--outcomes", help="Scores, 0 to 1, by program_id (.jsonl, .csv, .parquet)."),
    ] = None,
    plot: Annotated[Path | None, plot_option("--plot", "predicted against realised")] = None,
    params: ParamsOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """What the gateway predicted beside what happened, and live traffic beside the training data.

    The verdict is healthy, drifting or broken, by the limits of section 'evaluate_live' of
    --params; the last two exit with 5. With too few completed programs it is unknown, which exits
    with 0. Run it once the programs of the log have ended.
    """
    from chimera_train.cli.live_figures import live_summary
    from chimera_train.errors import QualityGateError
    from chimera_train.live.evaluate import evaluate_live, read_outcomes
    from chimera_train.live.settings import EvaluateLiveSettings
    from chimera_train.live.training import load_training
    from chimera_train.traces.decisions import read_decisions

    output = Output(as_json=as_json, quiet=quiet)
    settings = settings_from(params, "evaluate_live", EvaluateLiveSettings, "evaluate live", {})
    log = read_decisions(decisions)
    scores = None if outcomes is None else read_outcomes(outcomes)
    judged = evaluate_live(log, load_training(bundle, traces), scores, settings)
    figures = judged.figures
    if scores is not None and figures["router"] is None:
        output.warn(f"No program of {outcomes} is in the log with a confidence of the router.")
    if plot is not None:
        from chimera_train.report.live_plots import plot_live

        plot_live(judged, plot)
    output.result(figures, *live_summary(figures))
    if figures["verdict"] in ("drifting", "broken"):
        missed = [c["name"] for c in figures["checks"] if c["state"] == figures["verdict"]]
        raise QualityGateError(
            f"{decisions} is {figures['verdict']} by {', '.join(missed)}: mend what fails, or fit"
            " again on what 'chimera-train collect import --from decisions' makes of it."
        )
    if figures["verdict"] == "unknown":
        output.warn(
            f"{figures['programs_completed']} completed programs are too few for a verdict:"
            f" {settings.min_programs} are needed (min_programs)."
        )

"""``chimera-train fit``: the predictors, from collected traces."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from chimera_train.cli.common import (
    JsonOption,
    OutDir,
    ParamsOption,
    QuietOption,
    TracesOption,
    TrackOption,
    plot_option,
    settings_from,
    tracked,
)
from chimera_train.output import Output, table

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    group = typer.Typer(
        help="Fit the length forests, the router, or an opaque endpoint's average case.",
        no_args_is_help=True,
    )
    group.command()(length)
    group.command()(router)
    group.command()(average_case)
    app.add_typer(group, name="fit")


def length(
    traces: TracesOption,
    out: OutDir,
    params: ParamsOption = None,
    target: Annotated[
        Literal["remaining", "stage", "rank"],
        typer.Option(
            "--target",
            help="What to predict: the program's remaining tokens; the stage's own, for the order"
            " sjf; or a rank of the latter, for ltr.",
        ),
    ] = "remaining",
    search: Annotated[
        int,
        typer.Option(
            "--search", min=0, help="Settings to try first; the given ones stay unless beaten."
        ),
    ] = 0,
    curve: Annotated[
        bool, typer.Option("--curve", help="Also find how many programs are enough.")
    ] = False,
    plot: Annotated[
        Path | None,
        plot_option("--plot", "the lengths of each model's programs"),
    ] = None,
    quality_plot: Annotated[
        Path | None,
        plot_option("--quality-plot", "how well they are predicted"),
    ] = None,
    hash_key_file: Annotated[
        Path | None,
        typer.Option(
            "--hash-key-file",
            help="Key of traces without texts (--no-text), which becomes part of the result;"
            " TRACES.hash-key, if there is one, unless given.",
        ),
    ] = None,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """What a program, or a stage of it, still generates, judged on unseen questions."""
    from chimera_train.cli.length_figures import length_summary
    from chimera_train.config import load_section
    from chimera_train.errors import ConfigError
    from chimera_train.hashed_text import HashKey, key_path
    from chimera_train.length.fit import fit_and_write
    from chimera_train.length.settings import LengthSettings
    from chimera_train.traces.store import load_traces

    output = Output(as_json=as_json, quiet=quiet)
    if search and target == "rank":
        raise ConfigError("--search tries settings of estimators, and a ranker has none.")
    settings = load_section(params, "fit_length", LengthSettings)
    if hash_key_file is None and key_path(traces).exists():
        hash_key_file = key_path(traces)
    key = None if hash_key_file is None else HashKey.read(hash_key_file)
    loaded = load_traces(traces)
    with tracked(track, "fit_length", {**settings.model_dump(), "target": target}) as run:
        found = fit_and_write(
            loaded, out, settings, output, target, trials=search, curve=curve, key=key
        )
        if plot is not None:
            from chimera_train.report.lengths import plot_lengths

            plot_lengths(loaded, plot)
        if quality_plot is not None:
            from chimera_train.report.length_plots import plot_length

            curve_found = found.metrics.get("learning_curve")
            plot_length(found.judged, found.metrics, quality_plot, curve_found)
        if run is not None:
            from chimera_train.length.store import file_names

            run.metrics(found.metrics)
            run.artifact(out)
            for drawn in (plot, quality_plot):
                if drawn is not None:
                    run.artifact(drawn)
            for model, name in file_names(found.fitted.estimators).items():
                run.length_estimator(f"length-{name}", found.fitted.estimators[model])
    output.result(found.metrics, *length_summary(found.metrics), f"wrote {out}")


def router(
    traces: TracesOption,
    out: OutDir,
    params: ParamsOption = None,
    kind: Annotated[
        Literal["auto", "prior", "tfidf_logreg", "knn", "boosted", "blend", "encoder"] | None,
        typer.Option(
            "--kind",
            help="The kind of router; auto keeps the best of those that need no encoder, and of"
            " an encoder too if the parameter file names one.",
        ),
    ] = None,
    quality_plot: Annotated[
        Path | None,
        plot_option("--quality-plot", "how good the router is"),
    ] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Also find how many questions are enough.")
    ] = False,
    track: TrackOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """A router that tells from a question's text how likely each model is to answer it right.

    On several devices: accelerate launch --multi_gpu -m chimera_train fit router …
    """
    from chimera_train.cli.router_figures import router_summary
    from chimera_train.router.processes import is_main_process
    from chimera_train.router.settings import RouterSettings

    is_main = is_main_process()
    output = Output(as_json=as_json, quiet=quiet or not is_main)
    settings = settings_from(params, "fit_router", RouterSettings, "fit router", {"kind": kind})
    from chimera_train.router.fit import fit_router  # seconds: a wrong setting shows before

    with tracked(track if is_main else None, "fit_router", settings.model_dump()) as run:
        curves = None if run is None else run.curves
        metrics = fit_router(traces, out, settings, output, curves, learning=curve)
        if quality_plot is not None:
            from chimera_train.report.router_plots import plot_router

            plot_router(metrics, quality_plot)
        if run is not None:
            run.metrics(metrics)
            run.artifact(out)
            if quality_plot is not None:
                run.artifact(quality_plot)
    output.result(metrics, *router_summary(metrics), f"wrote {out}")


def average_case(
    requests: Annotated[
        list[Path],
        typer.Option(
            "--requests",
            help="Observed requests of one endpoint (.jsonl, .jsonl.gz or .parquet) at one arrival"
            " rate; give several, or --window-s.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="File (JSON) to write.")],
    window_s: Annotated[
        float | None,
        typer.Option(
            "--window-s",
            min=1,
            help="Cut recordings into windows of so many seconds, long against a request.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How long the first token of an opaque endpoint takes by arrival rate (SFS, average case)."""
    from chimera_train.errors import DataError
    from chimera_train.files import write_json
    from chimera_train.latency.average_case import fit_average_case, observed_loads
    from chimera_train.simulate.replay import read_requests

    recordings = [read_requests(path) for path in requests]
    for path, recording in zip(requests, recordings, strict=True):
        if "ttft_ms" not in recording:
            raise DataError(f"{path} lacks the column ttft_ms, which the average case needs.")
    document = fit_average_case(observed_loads(recordings, window_s), requests).model_dump()
    write_json(out, document)
    Output(as_json=as_json).result(
        {**document, "out": str(out)}, *_average_case_summary(document), f"wrote {out}"
    )


def _average_case_summary(document: Mapping[str, Any]) -> list[Any]:
    mape = document["mape"]
    better = [name for name in ("constant", "mm1") if mape[name] <= mape["used"]]
    lowest, highest = document["fitted_on"]["rates_per_s"]
    is_bounded = any(load["saturated"] for load in document["loads"])
    return [
        table(
            ["requests/s", "requests", "mean TTFT ms", "held-out error %"],
            [
                [
                    load["rate_per_s"],
                    load["requests"],
                    "saturated" if load["saturated"] else load["ttft_ms"],
                    load["held_out_error_percent"],
                ]
                for load in document["loads"]
            ],
        ),
        "",
        f"mu {document['mu_per_s']:.4g} requests/s, k {document['k']}; without waiting"
        f" {document['floor_ms']:.4g} ms + {document['floor_ms_s']:.4g} ms for every request/s",
        f"held-out MAPE of the mean TTFT: {mape['used']:.3g} %; with the published constant floor"
        f" {mape['published']:.3g} %, constant {mape['constant']:.3g} %, M/M/1 {mape['mm1']:.3g} %",
        f"NOT better than {' and '.join(better)}: use that instead"
        if better
        else "better than a constant and than M/M/1",
        f"the endpoint kept up with {lowest:.4g} to {highest:.4g} requests/s"
        + ("" if is_bounded else "; none saturated it, so mu may be far too high"),
    ]

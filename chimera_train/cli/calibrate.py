"""``chimera-train calibrate``: a step-time model of one engine from its measured steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption, TrackOption, plot_option, tracked
from chimera_train.output import Output, table

__all__ = ["register"]

_REGIMES = ("overall", "decode_only", "prefill_only", "mixed")
_REPEATS = "same batch again"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(calibrate)


def calibrate(
    steps: Annotated[
        Path,
        typer.Option(
            "--steps",
            help="Directory of 'collect steps', its steps.parquet, or a .csv or .csv.gz file.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Coefficient file (JSON) to write.")],
    engine: Annotated[
        Path | None,
        typer.Option("--engine", help="The engine's engine.json; by default the one beside steps."),
    ] = None,
    engine_name: Annotated[
        str | None,
        typer.Option("--engine-name", help="Which engine's steps, where there are several."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            help="Kind of step-time model: tokens, memory, eq9, eq9-plus or table; auto takes the"
            " simplest that predicts held-out steps as well as the best.",
        ),
    ] = "auto",
    traces: Annotated[
        Path | None,
        typer.Option(
            "--traces", help="Collected traces to take the mean context from, not from the steps."
        ),
    ] = None,
    sharing: Annotated[
        Path | None,
        typer.Option(
            "--sharing", help="sharing.json of 'collect steps --together', which the file keeps."
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option("--max-context", min=1, help="Leave out steps with a longer context."),
    ] = None,
    plot: Annotated[
        Path | None,
        plot_option("--plot", "predicted against measured"),
    ] = None,
    track: TrackOption = None,
    json: JsonOption = False,
) -> None:
    """Fit a step-time model on measured steps and judge it on contexts and batches not seen."""
    from chimera_train.collect.data_set import is_complete
    from chimera_train.collect.provenance import FILE_NAME as PROVENANCE
    from chimera_train.files import write_json
    from chimera_train.latency import calibrate as calibration
    from chimera_train.latency.steps import read_steps
    from chimera_train.pool.sharing import load_sharing

    output = Output(as_json=json)
    measured = read_steps(steps, engine_name=engine_name, max_context=max_context)
    if measured.source.with_name(PROVENANCE).is_file() and not is_complete(measured.source.parent):
        output.warn(
            f"{measured.source.parent} holds a part of a profile: run 'collect steps' again to"
            " complete it"
        )
    beside = measured.source.with_name("engine.json")
    engine = engine or (beside if beside.is_file() else None)
    with tracked(track, f"calibrate {out.stem}", {"kind": model, "steps": steps}) as run:
        result = calibration.calibrate(
            measured,
            kind=None if model == "auto" else model,
            engine=None if engine is None else calibration.read_engine(engine),
            traces=traces,
            sharing=None if sharing is None else load_sharing(sharing),
        )
        document = result.document
        if engine is None:
            output.warn(
                "there is no engine.json: the figures are valid, but the file cannot be used for an"
                " engine (give --engine)"
            )
        if plot is not None:
            from chimera_train.latency.plot import plot_calibration

            plot_calibration(plot, result, measured.frame)
        write_json(out, document)
        if run is not None:
            run.metrics({name: document[name] for name in ("mape", "bias", "p90", "baselines")})
            run.artifact(out)
    output.result(
        {"model": document["kind"], "out": str(out), **document}, *_summary(document, out)
    )


def _summary(document: Mapping[str, Any], out: Path) -> list[Any]:
    judged = {**document["baselines"], document["kind"]: document}
    judged = dict(sorted(judged.items(), key=lambda entry: -entry[1]["mape"]["overall"]))
    repeats = document["repeatability"]
    stalls = document["stalls"]
    source = f" ({document['source']})" if document["source"] else ""
    parts: list[Any] = [
        f"{_fitted_on(document['fitted_on'])}{source}; errors in % on steps of contexts not seen,"
        f" and of batch shapes not seen; {document['kind']} is used",
        table(
            ["model", "overall", "decode-only", "prefill-only", "mixed", "shapes", "bias", "p90"],
            [
                *([kind, *_figures(errors)] for kind, errors in judged.items()),
                *([[_REPEATS, *_figures(repeats)]] if repeats else []),
            ],
        ),
        "no batch was seen twice: nothing tells how much the engine itself varies"
        if repeats is None
        else f"({_REPEATS}: {repeats['share']:.0%} of steps by the median of the others like them;"
        " what it leaves is the engine's own variation)",
        "",
        table(
            ["term", "coefficient", "unit"],
            [[term["name"], term["coefficient"], term["unit"]] for term in document["terms"]],
        ),
        *_describe_table(document["table"]),
        "",
        f"stalls: {stalls['probability']:.2%} of steps, {stalls['mean_ms']:.4g} ms each",
    ]
    if document["engine"] is not None:
        parts.append(
            f"max_batch_size {document['max_batch_size']}, decode_ms_per_token"
            f" {document['decode_ms_per_token']:.4g} at a mean context of"
            f" {document['mean_context_tokens']:.4g} tokens (from"
            f" {document['mean_context_source']})"
        )
    if document["sharing_curve"] is not None:
        factors = ", ".join(f"{factor:.4g}" for factor in document["sharing_curve"])
        parts.append(f"with 1, 2, … engines of '{document['device_group']}' busy: times {factors}")
    return [*parts, f"wrote {out}"]


def _fitted_on(fitted_on: Mapping[str, Any]) -> str:
    steps, rows = fitted_on["steps"], fitted_on["rows"]
    origins = [f"{n} {origin}" for origin, n in fitted_on["origins"].items()]
    summed = f" in {rows} rows timed as a whole" if rows < steps else ""
    return f"{steps} steps{summed} ({', '.join(origins)})"


def _describe_table(points: Mapping[str, Any] | None) -> list[str]:
    if points is None:
        return []
    tokens, ms = points["tokens"], points["ms"]
    return [
        f"and a token table of {len(tokens)} points, from {ms[0]:.4g} ms at {tokens[0]:g} tokens to"
        f" {ms[-1]:.4g} ms at {tokens[-1]:g}"
    ]


def _figures(errors: Mapping[str, Any]) -> list[float | None]:
    shapes = errors.get("unseen_shapes")
    return [
        *(errors["mape"][name] for name in _REGIMES),
        shapes and shapes["mape"]["overall"],
        errors["bias"],
        errors["p90"],
    ]

"""``chimera-train calibrate-endpoint``: the average case of an endpoint that shows no state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from chimera_train.cli.common import JsonOption
from chimera_train.output import Output, table

__all__ = ["register"]

# Near saturation chance alone moves a mean wait by this much.
_POOR_PERCENT = 50.0


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("calibrate-endpoint")(calibrate_endpoint)


def calibrate_endpoint(
    requests: Annotated[
        Path,
        typer.Option(
            "--requests",
            help="Observed requests of one endpoint (.parquet, .csv[.gz] or .jsonl[.gz]):"
            " arrival_ms, prompt_tokens, ttft_ms, e2e_ms, rate_per_s.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Coefficient file (JSON) to write.")],
    window_s: Annotated[
        float | None,
        typer.Option(
            "--window-s",
            min=1,
            help="Take loads from windows of this many seconds, long against a request, of one"
            " continuous log; rate_per_s is not needed then.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw TTFT against arrival rate (PNG).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Fit how long requests wait at an endpoint, by arrival rate, from latencies alone."""
    from chimera_train.files import write_json
    from chimera_train.latency import endpoint
    from chimera_train.latency.loads import read_loads

    output = Output(as_json=json)
    document = endpoint.calibrate_endpoint(read_loads(requests, window_s=window_s), seed=0)
    if plot is not None:
        from chimera_train.latency.endpoint_plot import plot_endpoint

        plot_endpoint(plot, document)
    write_json(out, document)
    fitted = document["mape"]["fitted"]
    if fitted is not None and fitted > _POOR_PERCENT:
        output.warn(
            f"the formula misses the mean TTFTs by {fitted:.3g} % even where it was fitted: do not"
            " rely on it for this endpoint"
        )
    output.result({"out": str(out), **document}, *_summary(document, out))


def _summary(document: Mapping[str, Any], out: Path) -> list[Any]:
    mu, k, ci = document["mu_per_s"], document["k"], document["ci"]
    knee, mape = document["knee"], document["mape"]
    lowest, highest = document["observed_per_s"]
    parts: list[Any] = [
        table(
            ["rate/s", "requests", "in endpoint", "TTFT ms", "predicted", "error %", "held out %"],
            [
                [
                    load["rate_per_s"],
                    load["requests"],
                    "saturated" if load["saturated"] else load["concurrency"],
                    load["ttft_ms"],
                    load["predicted_ttft_ms"],
                    load["fitted_error_percent"],
                    load["held_out_error_percent"],
                ]
                for load in document["loads"]
            ],
        ),
        "",
        f"mu {mu:.4g} requests/s (95 %: {_range(ci['mu_per_s'])}), k {k}"
        f" (the mean waits alone: {_range(ci['k'])})",
        f"requests wait from {knee['requests']} others on (wrong about {knee['wrong']:.1%})",
    ]
    if k != knee["requests"]:
        parts.append(
            "k is the exponent that describes the waits, not the number of requests served at once"
        )
    return [
        *parts,
        f"MAPE of the mean TTFT {_percent(mape['fitted'])}, held out {_percent(mape['held_out'])}",
        f"holds from {lowest:.4g} to {highest:.4g}/s, extrapolates to {mu:.4g}/s, saturated beyond",
        f"wrote {out}",
    ]


def _range(ci: tuple[float, float]) -> str:
    low, high = ci
    return f"{low:.4g} to {high:.4g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} %"

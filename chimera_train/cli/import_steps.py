"""``chimera-train collect import-steps``: steps out of what other people publish."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption, OutDir, QuietOption
from chimera_train.output import Output, table

__all__ = ["import_steps"]


def import_steps(
    path: Annotated[
        Path, typer.Argument(help="Directory of a layer profile, or a table of latencies (CSV).")
    ],
    source: Annotated[str, typer.Option("--from", help="Format: llmservingsim or latency-table.")],
    out: OutDir,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="COLUMN=VALUE of the rows to take; can be given several times."
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option("--layers", min=1, help="Decoder layers of the model (llmservingsim)."),
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option("--engine", help="engine.json of the engine that was measured, if known."),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Turn a published profile into steps for 'calibrate', for a GPU that is not here."""
    from chimera_train.collect import provenance
    from chimera_train.latency.calibrate import read_engine
    from chimera_train.latency.published import data_set

    output = Output(as_json=as_json, quiet=quiet)
    provenance.require_new(out)
    imported = data_set.import_steps(
        path,
        out,
        format_name=source,
        where=data_set.parse_where(where or ()),
        layers=layers,
        engine=None if engine is None else read_engine(engine),
        imported_at=provenance.now(),
    )
    for reason, n_rows in imported.left_out.items():
        if n_rows:
            output.warn(f"{n_rows} rows are left out: they {reason}")
    rows, origins = len(imported.steps.frame), dict(imported.steps.origins)
    kv_tokens = imported.fitted_kv_tokens
    output.result(
        {
            "rows": rows,
            "origins": origins,
            "left_out": dict(imported.left_out),
            "fitted_kv_tokens": kv_tokens,
            "out": str(out),
        },
        table(["rows", *origins], [[rows, *origins.values()]]),
        *([f"KV cache of about {kv_tokens} tokens, fitted on the times"] if kv_tokens else []),
        f"wrote {out}",
    )

"""``chimera-train collect status`` and ``merge``: collections that run, and that ran, elsewhere."""

from pathlib import Path
from typing import Annotated

import typer

from chimera_train.cli.common import JsonOption, OutDir, QuietOption
from chimera_train.output import Output, table

__all__ = ["merge", "status"]

Directories = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="Directories of `collect traces`.")
]


def status(directories: Directories, as_json: JsonOption = False) -> None:
    """Show how far collections are, also while they run, and why programs failed."""
    from dataclasses import asdict
    from datetime import UTC, datetime, timedelta

    from chimera_train.collect.status import collection_status

    now = datetime.now(UTC)
    found = [collection_status(directory, now=now) for directory in directories]
    models = [model for one in found for model in one.models.values()]
    totals = {
        name: sum(getattr(model, name) for model in models)
        for name in ("wanted", "completed", "failed", "missing")
    }
    columns = ("wanted", "completed", "failed", "missing", "mean_score", "per_minute")
    Output(as_json=as_json).result(
        {**totals, "directories": [asdict(one) for one in found]},
        table(
            ("directory", "state", "model", *columns, "time left"),
            [
                [
                    one.directory + (f" ({one.shard})" if one.shard else ""),
                    "running" if one.running else "stopped",
                    name,
                    *(getattr(model, column) for column in columns),
                    None if model.eta_s is None else str(timedelta(seconds=round(model.eta_s))),
                ]
                for one in found
                for name, model in one.models.items()
            ],
        ),
        *(
            f"{one.directory}: {count} failed: {error}"
            for one in found
            for error, count in one.errors.items()
        ),
    )


def merge(
    directories: Directories, out: OutDir, quiet: QuietOption = False, as_json: JsonOption = False
) -> None:
    """Put collections of the same settings together, such as shards; each program is kept once."""
    from dataclasses import asdict

    from chimera_train.collect.merge import merge_collections

    output = Output(as_json=as_json, quiet=quiet)
    result = merge_collections(directories, out)
    if result.missing_shards:
        missing = ", ".join(map(str, result.missing_shards))
        are = "shard {} is" if len(result.missing_shards) == 1 else "shards {} are"
        output.warn(f"{are.format(missing)} missing: {out} is partial")
    if result.missing or result.failed:
        output.warn(
            f"{result.missing} programs of the merged parts are missing and {result.failed} failed:"
            " 'collect traces' with the same settings and this --out runs them"
        )
    values = asdict(result)
    shown = {name: value for name, value in values.items() if name != "missing_shards"}
    output.result(
        {**values, "missing_shards": list(result.missing_shards), "out": str(out)},
        table(list(shown), [list(shown.values())]),
        f"wrote {out}",
    )

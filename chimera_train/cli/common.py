"""Options that several commands share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from chimera_train.tracking import StageRun

__all__ = [
    "JsonOption",
    "OutDir",
    "ParamsOption",
    "PoolOption",
    "QuietOption",
    "TracesOption",
    "TrackOption",
    "tracked",
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="No progress and no messages.")]
PoolOption = Annotated[Path, typer.Option("--pool", help="Pool file (YAML).")]
TracesOption = Annotated[Path, typer.Option("--traces", help="Directory of collected traces.")]
OutDir = Annotated[Path, typer.Option("--out", help="Directory to write.")]
ParamsOption = Annotated[
    Path | None,
    typer.Option("--params", help="Parameter file (YAML); this command reads its own section."),
]
TrackOption = Annotated[
    str | None,
    typer.Option("--track", help="MLflow store to log settings, figures and models in."),
]


@contextmanager
def tracked(
    uri: str | None, stage: str, settings: Mapping[str, Any]
) -> "Iterator[StageRun | None]":
    """An MLflow run around a command's work; None, and no import of MLflow, without ``--track``."""
    if uri is None:
        yield None
        return
    from chimera_train.tracking import stage_run

    with stage_run(uri, stage, settings) as run:
        yield run

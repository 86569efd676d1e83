"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["JsonOption", "OutDir", "ParamsOption", "PoolOption", "QuietOption", "TracesOption"]

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

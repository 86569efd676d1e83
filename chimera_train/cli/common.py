"""Options that several commands share."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from chimera_train.files import require_creatable

if TYPE_CHECKING:
    from chimera_train.config import Settings
    from chimera_train.tracking import StageRun

__all__ = [
    "HashKeyOption",
    "JsonOption",
    "NoTextOption",
    "OutDir",
    "ParamsOption",
    "PoolOption",
    "QuietOption",
    "RedactOption",
    "TracesOption",
    "TrackOption",
    "plot_option",
    "settings_from",
    "tracked",
]

T = TypeVar("T", bound="Settings")

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
NoTextOption = Annotated[
    bool,
    typer.Option(
        "--no-text",
        help="Store counts, and keyed hashes of the words of user messages, instead of texts.",
    ),
]
RedactOption = Annotated[
    list[str] | None,
    typer.Option(
        "--redact",
        metavar="REGEX",
        help="Replace what matches in every text before it is stored; can be given several times.",
    ),
]
HashKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--hash-key-file",
        help="Key of the hashes of --no-text, made if there is none; OUT.hash-key unless given."
        " 'fit length' needs it, and who has it can test words: do not give it away with the data.",
    ),
]
TrackOption = Annotated[
    str | None,
    typer.Option("--track", help="MLflow store to log settings, figures and models in."),
]


def plot_option(name: str, what: str) -> Any:
    """The option of a picture to draw (PNG); a path that cannot be written is refused at once."""

    def checked(path: Path | None) -> Path | None:
        if path is not None:
            require_creatable(path)
        return path

    return typer.Option(name, help=f"Also draw {what} (PNG).", callback=checked)


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


def settings_from(
    params: Path | None, section: str, model: type[T], command: str, options: Mapping[str, Any]
) -> T:
    """A command's section of the parameter file, under the options that were given (not None).

    Raises:
        ConfigError: a value of the file or of an option is not allowed.
    """
    from chimera_train.config import load_section, parse_settings

    given = {name: value for name, value in options.items() if value is not None}
    # What is not set keeps a default that may depend on what is given.
    values = load_section(params, section, model).model_dump(exclude_unset=True) | given
    return parse_settings(values, model, command)

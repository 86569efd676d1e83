"""The ``chimera-train`` command: assembles the sub-commands and maps errors to exit codes."""

import importlib
import logging
import sys
from typing import Annotated

import typer
from rich.console import Console

from chimera_train import __version__
from chimera_train.errors import ChimeraError

__all__ = ["app", "main"]

app = typer.Typer(
    name="chimera-train",
    help="Learn, profile and prove routing and scheduling decisions for pools of LLM engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"chimera-train {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Log details and show tracebacks of errors.")
    ] = False,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


# The order of the help page: the order in which the commands are used.
for _module in (
    "doctor", "pool", "task", "collect", "fit", "evaluate", "router", "calibrate", "simulate",
    "export", "bundle", "serve",
):  # fmt: skip
    importlib.import_module(f"chimera_train.cli.{_module}").register(app)


def main() -> None:
    """Run the command line; known errors become one sentence on stderr and their exit code."""
    try:
        app()
    except ChimeraError as error:
        if "--debug" in sys.argv:
            raise
        Console(stderr=True, highlight=False).print(
            f"error: {error}", markup=False, style="red", soft_wrap=True
        )
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)

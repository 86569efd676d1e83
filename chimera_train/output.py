"""The one place where commands write: results to stdout, everything else to stderr.

A command that reports calls :meth:`Output.result` exactly once. With ``--json`` that prints one
JSON object and nothing else reaches stdout, so that ``chimera-train ... --json | jq`` always works.
Progress is drawn only on a terminal.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

__all__ = ["Output", "table"]


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A plain table; floats are shown with four significant digits, None as a dash."""
    result = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        result.add_row(*(_cell(value) for value in row))
    return result


class Output:
    """Where a command's result, messages and progress go.

    Args:
        as_json: print the result as one JSON object instead of text.
        quiet: suppress messages; the result and errors are still shown.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self._quiet = quiet
        self._stderr = Console(stderr=True, highlight=False)

    def result(self, values: Mapping[str, Any], *text: Any) -> None:
        """Print the result: ``values`` as JSON, or ``text`` (strings, tables) for people."""
        if self.as_json:
            sys.stdout.write(json.dumps(values, allow_nan=False) + "\n")
            sys.stdout.flush()
            return
        # Wide enough that a piped table is not folded at 80 columns.
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
        for part in text:
            console.print(part, markup=False)

    def info(self, message: str) -> None:
        """A line for people about what is happening."""
        if not self._quiet:
            self._stderr.print(message, markup=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """A line about something that did not stop the command but that the user should know."""
        self._stderr.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)

    def progress(self) -> Progress:
        """A progress display (use as a context manager); invisible off a terminal.

        Tasks may set the field ``note``, shown at the end of the line.
        """
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=self._stderr,
            speed_estimate_period=3600,  # items may take minutes
            disable=self._quiet or not self._stderr.is_terminal,
        )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)

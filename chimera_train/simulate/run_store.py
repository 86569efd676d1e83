"""The finished runs of a sweep on the disk, so that a sweep that was stopped goes on where it was.

A run is known by a hash of everything that decides it (``grid.run_key``): a sweep whose inputs have
changed finds those runs that the change leaves alone, and simulates the others.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chimera_train.errors import DataError
from chimera_train.files import JsonLines, open_json_lines

__all__ = ["FILE_NAME", "RunStore", "open_run_store"]

FILE_NAME = "runs.jsonl"


class RunStore:
    """Finished runs.

    Attributes:
        figures: of every run (``metrics.run_metrics``), by its key.
    """

    def __init__(self, lines: JsonLines) -> None:
        self.figures: dict[str, Mapping[str, Any]] = {}
        self._lines = lines
        for number, _, entry in lines.read():
            try:
                self.figures[entry["key"]] = dict(entry["figures"])
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{lines.path}:{number} is not a run of a sweep: restore the file or choose"
                    " another --out."
                ) from error

    def add(self, key: str, figures: Mapping[str, Any]) -> None:
        """Store one run; returns once it is on the disk."""
        self._lines.append({"key": key, "figures": figures})
        self.figures[key] = figures


@contextmanager
def open_run_store(directory: Path) -> Iterator[RunStore]:
    """Open the runs in ``directory`` for this process alone.

    Raises:
        ConfigError: the directory cannot be written, or another sweep is writing into it.
        DataError: the file is damaged before its last line.
    """
    with open_json_lines(directory / FILE_NAME) as lines:
        yield RunStore(lines)

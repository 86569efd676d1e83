"""The journal of a collection: one line per finished program, so that no finished work is lost.

A line is on the disk before its program counts as finished. The file starts with the settings it
was collected under, and every run that adds to it leaves a line about itself. What a kill left half
written at the end is dropped when the journal is next opened.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import JsonLines, open_json_lines

__all__ = ["FILE_NAME", "Journal", "open_journal"]

FILE_NAME = "journal.jsonl"


class Journal:
    """The finished programs of one collection.

    Attributes:
        settings: what decides which programs belong to it.
        programs: program id → ``{"program": row, "stages": [row, ...]}``; the latest of each.
        runs: what each run that added programs said about itself, oldest first.
    """

    def __init__(self, lines: JsonLines, settings: Mapping[str, Any]) -> None:
        self.settings = dict(settings)
        self.programs: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self._lines = lines
        self._pending: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        stored = self._read()
        if not self.programs:
            # Nothing to lose: a run that stored no program does not bind the next one.
            lines.clear()
            self.runs.clear()
            self._pending.append({"settings": dict(settings)})
        elif stored != settings:
            raise ConfigError(
                f"{lines.path} was collected with other settings: {_differences(stored, settings)}."
                " Use the same settings or another --out."
            )

    def completed(self) -> set[str]:
        """Ids of the programs that have no error."""
        return {
            program_id
            for program_id, entry in self.programs.items()
            if entry["program"]["error"] is None
        }

    def begin_run(self, facts: Mapping[str, Any]) -> None:
        """Note ``facts`` about this run; they are written with its first program."""
        self._pending.append({"run": dict(facts)})

    def append(self, program: Mapping[str, Any], stages: list[dict[str, Any]]) -> None:
        """Store one program with its stages; returns once it is on the disk. Thread-safe."""
        entry = {"program": dict(program), "stages": stages}
        with self._lock:
            self._lines.append(*self._pending, entry)
            self.runs += [line["run"] for line in self._pending if "run" in line]
            self._pending.clear()
            self.programs[program["program_id"]] = entry

    def _read(self) -> Any:
        settings: Any = None
        for number, entry in self._lines.read():
            try:
                if "settings" in entry:
                    settings = entry["settings"]
                elif "run" in entry:
                    self.runs.append(entry["run"])
                else:
                    self.programs[entry["program"]["program_id"]] = entry
            except (KeyError, TypeError) as error:
                raise DataError(
                    f"{self._lines.path}:{number} is not a line of a collection journal: restore "
                    "the file or collect into another --out."
                ) from error
        return settings


@contextmanager
def open_journal(directory: Path, settings: Mapping[str, Any]) -> Iterator[Journal]:
    """Open the journal in ``directory`` for this process alone, making both if need be.

    ``settings`` are everything that decides which programs the data set holds; JSON values.

    Raises:
        ConfigError: the directory cannot be written, holds programs of other settings or another
            data set, or another process is writing into it.
        DataError: the journal is damaged before its last line.
    """
    path = directory / FILE_NAME
    is_new = not path.exists() or path.stat().st_size == 0
    if is_new and (directory / "provenance.json").exists():
        raise ConfigError(f"{directory} holds another data set: choose another --out.")
    with open_json_lines(path) as lines:
        yield Journal(lines, settings)


def _differences(stored: Any, settings: Mapping[str, Any]) -> str:
    if not isinstance(stored, dict):
        return "it does not name them"
    return ", ".join(
        f"{name} differs"
        if isinstance(settings[name], dict)
        else f"{name} is {settings[name]!r}, was {stored.get(name)!r}"
        for name in sorted(settings)
        if stored.get(name) != settings[name]
    )

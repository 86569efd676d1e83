"""The journal of a collection: one line per finished piece, so that no finished work is lost.

A piece is a program of ``collect traces`` or a batch of ``collect steps``. Its line is on the disk
before it counts as finished. The file starts with the settings it was collected under, and every
run that adds to it leaves a line about itself, and may leave another at its end. What a kill left
half written at the end is dropped when the journal is next opened.
"""

import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from chimera_train.errors import ConfigError, DataError

__all__ = ["FILE_NAME", "Journal", "differences", "open_journal"]

FILE_NAME = "journal.jsonl"


class Journal:
    """The finished pieces of one collection.

    Attributes:
        settings: what decides which pieces belong to it.
        entries: every piece under its key, oldest first; the latest of each key.
        runs: what each run that added pieces said about itself, oldest first.
    """

    def __init__(
        self, file: IO[bytes], settings: Mapping[str, Any], key: Callable[[Any], str]
    ) -> None:
        self.settings = dict(settings)
        self.entries: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self._file = file
        self._key = key
        self._pending: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        stored = self._read()
        if not self.entries:
            # Nothing to lose: a run that stored nothing does not bind the next one.
            file.truncate(0)
            self.runs.clear()
            self._pending.append({"settings": dict(settings)})
        elif stored != settings:
            raise ConfigError(
                f"{file.name} was collected with other settings: {differences(stored, settings)}."
                " Use the same settings or another --out."
            )

    def begin_run(self, facts: Mapping[str, Any]) -> None:
        """Note ``facts`` about this run; they are written with its first piece."""
        self._pending.append({"run": dict(facts)})

    def end_run(self, facts: Mapping[str, Any]) -> None:
        """Add ``facts`` to what this run, which has stored a piece, said about itself."""
        self._write([{"ended": dict(facts)}])
        self.runs[-1] |= facts

    def append(self, entry: Mapping[str, Any]) -> None:
        """Store one piece; returns once it is on the disk. Thread-safe."""
        with self._lock:
            self._write([*self._pending, dict(entry)])
            self.runs += [line["run"] for line in self._pending if "run" in line]
            self._pending.clear()
            self.entries[self._key(entry)] = dict(entry)

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> Any:
        settings: Any = None
        end = 0
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                if "settings" in entry:
                    settings = entry["settings"]
                elif "run" in entry:
                    self.runs.append(entry["run"])
                elif "ended" in entry:
                    self.runs[-1] |= entry["ended"]
                else:
                    self.entries[self._key(entry)] = entry
            except (ValueError, LookupError, TypeError) as error:
                raise DataError(
                    f"{self._file.name}:{number} is not a line of a collection journal: restore "
                    "the file or collect into another --out."
                ) from error
            end += len(line)
        self._file.truncate(end)
        return settings


@contextmanager
def open_journal(
    directory: Path, settings: Mapping[str, Any], key: Callable[[Any], str]
) -> Iterator[Journal]:
    """Open the journal in ``directory`` for this process alone, making both if need be.

    If nothing is ever stored, neither stays behind.

    Args:
        directory: of the data set.
        settings: everything that decides which pieces it holds; JSON values.
        key: what tells a stored piece from others.

    Raises:
        ConfigError: the directory cannot be written, holds pieces of other settings or another
            data set, or another process is collecting into it.
        DataError: the journal is damaged before its last line.
    """
    path = directory / FILE_NAME
    is_new = not path.exists() or path.stat().st_size == 0
    if is_new and (directory / "provenance.json").exists():
        raise ConfigError(f"{directory} holds another data set: choose another --out.")
    is_made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({error.strerror}): choose another --out."
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Another process is collecting into {directory}: wait for it or choose another "
                "--out."
            ) from error
        journal = Journal(file, settings, key)
        try:
            yield journal
        finally:
            if not journal.entries:
                path.unlink(missing_ok=True)
                if is_made and not any(directory.iterdir()):
                    directory.rmdir()


def differences(stored: Any, settings: Mapping[str, Any]) -> str:
    """Which values of ``settings`` are not the stored ones, in words."""
    if not isinstance(stored, dict):
        return "it does not name them"
    return ", ".join(
        f"{name} differs"
        if isinstance(settings.get(name), dict)
        else f"{name} is {settings.get(name)!r}, was {stored.get(name)!r}"
        for name in sorted({*settings, *stored})
        if stored.get(name) != settings.get(name)
    )

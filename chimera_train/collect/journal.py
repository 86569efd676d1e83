"""The journal of a collection: one line per finished piece, so that no finished work is lost.

A piece is a program of ``collect traces`` or a batch of ``collect steps``. Its line is on the disk
before it counts as finished. The file starts with the settings it was collected under, and every
run that adds to it leaves a line about itself, and may leave another at its end. What a kill left
half written at the end is dropped when the journal is next opened.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import JsonLine, JsonLines, open_json_lines, read_json_lines

__all__ = [
    "FILE_NAME", "Journal", "Pieces", "Stored", "differences", "open_journal", "read_journal",
]  # fmt: skip

FILE_NAME = "journal.jsonl"


class Pieces(Mapping[str, dict[str, Any]]):
    """The pieces in a journal under their keys, oldest first; the latest of each key.

    A week of them does not fit into memory: only where each begins is kept, and its ``brief``.

    Attributes:
        briefs: what the reader wants to know of every piece at any time.
    """

    def __init__(self, path: Path, key: Callable[[Any], str], brief: Callable[[Any], Any]) -> None:
        self.briefs: dict[str, Any] = {}
        self._starts: dict[str, int] = {}
        self._path = path
        self._key = key
        self._brief = brief

    def note(self, start: int, piece: Mapping[str, Any]) -> None:
        """Take note of the piece that begins at byte ``start``."""
        name = self._key(piece)
        self._starts[name] = start
        self.briefs[name] = self._brief(piece)

    def __getitem__(self, name: str) -> dict[str, Any]:
        start = self._starts[name]
        with self._path.open("rb") as file:
            file.seek(start)
            return dict(json.loads(file.readline()))

    def __contains__(self, name: object) -> bool:
        return name in self._starts

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)


class Stored:
    """What the file of a journal holds.

    Attributes:
        settings: what decides which pieces belong to it; None: it says nothing.
        entries: the pieces.
        runs: what each run that added pieces said about itself, oldest first.
    """

    def __init__(
        self,
        path: Path,
        lines: Iterable[JsonLine],
        key: Callable[[Any], str],
        brief: Callable[[Any], Any],
    ) -> None:
        self.settings: Any = None
        self.entries = Pieces(path, key, brief)
        self.runs: list[dict[str, Any]] = []
        for number, start, entry in lines:
            try:
                if "settings" in entry:
                    self.settings = entry["settings"]
                elif "run" in entry:
                    self.runs.append(entry["run"])
                elif "ended" in entry:
                    self.runs[-1] |= entry["ended"]
                else:
                    self.entries.note(start, entry)
            except (LookupError, TypeError) as error:
                raise DataError(
                    f"{path}:{number} is not what this command stores: give a directory that it"
                    " wrote or another --out, or restore the file if it is damaged."
                ) from error


class Journal:
    """The finished pieces of one collection.

    Attributes:
        settings: what decides which pieces belong to it.
        entries: every piece under its key, oldest first; the latest of each key.
        runs: what each run that added pieces said about itself, oldest first.
    """

    def __init__(self, lines: JsonLines, settings: Mapping[str, Any], stored: Stored) -> None:
        self.settings = dict(settings)
        self.entries = stored.entries
        self.runs = stored.runs
        self._lines = lines
        self._pending: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._is_sealed = False
        if not self.entries:
            # Nothing to lose: a run that stored nothing does not bind the next one.
            lines.clear()
            self.runs.clear()
            self._pending.append({"settings": dict(settings)})
        elif stored.settings != settings:
            raise ConfigError(
                f"{lines.path} was collected with other settings:"
                f" {differences(stored.settings, settings)}."
                " Use the same settings or another --out."
            )

    @property
    def size_bytes(self) -> int:
        """Of the file."""
        return self._lines.size_bytes

    def begin_run(self, facts: Mapping[str, Any]) -> None:
        """Note ``facts`` about this run; they are written with its first piece."""
        self._pending.append({"run": dict(facts)})

    def end_run(self, facts: Mapping[str, Any]) -> None:
        """Add ``facts`` to what this run, which has stored a piece, said about itself."""
        self._lines.append({"ended": dict(facts)})
        self.runs[-1] |= facts

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Store pieces, unless ``seal`` was called; returns once they are on the disk.

        Thread-safe.

        Raises:
            ChimeraError: the disk is full or fails; the file is as it was.
        """
        with self._lock:
            if self._is_sealed:
                return
            starts = self._lines.append(*self._pending, *map(dict, entries))
            self.runs += [line["run"] for line in self._pending if "run" in line]
            self._pending.clear()
            for start, entry in zip(starts[len(starts) - len(entries) :], entries, strict=True):
                self.entries.note(start, entry)

    def seal(self) -> None:
        """Store no further piece; returns once one that is being stored is on the disk.

        What is made of the entries then has all that the file has, though a thread may still run.
        """
        with self._lock:
            self._is_sealed = True


def read_journal(
    directory: Path, key: Callable[[Any], str], brief: Callable[[Any], Any] = lambda _: None
) -> Stored:
    """Read the journal in ``directory``, to which another process may be adding.

    Raises:
        DataError: there is none, or it is damaged before its last line.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: give a directory written by 'chimera-train collect traces'."
        )
    return Stored(path, read_json_lines(path), key, brief)


@contextmanager
def open_journal(
    directory: Path,
    settings: Mapping[str, Any],
    key: Callable[[Any], str],
    brief: Callable[[Any], Any] = lambda _: None,
) -> Iterator[Journal]:
    """Open the journal in ``directory`` for this process alone, making both if need be.

    If nothing is ever stored, neither stays behind.

    Args:
        directory: of the data set.
        settings: everything that decides which pieces it holds; JSON values.
        key: what tells a stored piece from others.
        brief: what is wanted of every piece at any time (``Pieces.briefs``).

    Raises:
        ConfigError: the directory cannot be written, holds pieces of other settings or another
            data set, or another process is writing into it.
        DataError: the journal is damaged before its last line.
    """
    path = directory / FILE_NAME
    is_new = not path.exists() or path.stat().st_size == 0
    if is_new and (directory / "provenance.json").exists():
        raise ConfigError(f"{directory} holds another data set: choose another --out.")
    is_made = not directory.exists()
    with open_json_lines(path) as lines:
        journal = Journal(lines, settings, Stored(path, lines.read(), key, brief))
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

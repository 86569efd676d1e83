"""Bringing together what belongs together in files of any size and order."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

__all__ = ["Groups", "Item", "grouping"]


class Item(NamedTuple):
    """A value, and its place in the files."""

    place: str
    value: Any


class Groups:
    """Values under keys; the first key of all comes first, and its values in their order."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("CREATE TABLE items (key TEXT, sort REAL, place TEXT, value TEXT)")

    def add(self, key: str, sort: float, place: str, value: Any) -> None:
        """Add a JSON value under ``key``; those of a key are sorted by ``sort``."""
        row = (key, sort, place, json.dumps(value))
        self._database.execute("INSERT INTO items VALUES (?, ?, ?, ?)", row)

    def __iter__(self) -> Iterator[tuple[str, list[Item]]]:
        self._database.execute("CREATE INDEX by_key ON items (key)")
        keys = self._database.execute("SELECT key FROM items GROUP BY key ORDER BY MIN(rowid)")
        for (key,) in keys:
            rows = self._database.execute(
                "SELECT place, value FROM items WHERE key = ? ORDER BY sort, rowid", (key,)
            )
            yield key, [Item(place, json.loads(value)) for place, value in rows]


@contextmanager
def grouping() -> Iterator[Groups]:
    """Groups that take to a temporary file, which nobody else sees, when they are many."""
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        yield Groups(database)

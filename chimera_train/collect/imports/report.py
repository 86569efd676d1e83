"""What became of every row of an import: used, left out for a reason, or invalid."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Reasons", "Report"]

_PLACES = 3


@dataclass(slots=True)
class _Rows:
    rows: int = 0
    first: list[str] = field(default_factory=list)


class Reasons(dict[str, _Rows]):
    """Reason → how many rows, and where the first ones are."""

    def add(self, reason: str, place: str, rows: int = 1) -> None:
        """Count rows at a place."""
        entry = self.setdefault(reason, _Rows())
        entry.rows += rows
        if len(entry.first) < _PLACES and place not in entry.first:
            entry.first.append(place)

    @property
    def rows(self) -> int:
        """Of all reasons."""
        return sum(entry.rows for entry in self.values())

    def sentences(self) -> list[str]:
        """A line for people about each reason."""
        return [
            f"{entry.rows} {'row' if entry.rows == 1 else 'rows'}: {reason} ("
            + ("at " if len(entry.first) == entry.rows else "first at ")
            + ", ".join(entry.first)
            + ")"
            for reason, entry in self.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            reason: {"rows": entry.rows, "first": entry.first} for reason, entry in self.items()
        }


@dataclass(slots=True)
class Report:
    """Rows of the files: ``read`` is ``used`` and those of ``left_out`` and ``invalid`` together.

    What a row is depends on the source: a line, a request, a span.

    Attributes:
        left_out: rows that are well-formed and of no use.
        invalid: rows that are not well-formed.
        ignored_fields: fields that have no place in the tables, and how often they were there.
    """

    read: int = 0
    used: int = 0
    left_out: Reasons = field(default_factory=Reasons)
    invalid: Reasons = field(default_factory=Reasons)
    ignored_fields: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "read": self.read,
            "used": self.used,
            "left_out": self.left_out.as_json(),
            "invalid_rows": self.invalid.as_json(),
            "ignored_fields": dict(self.ignored_fields),
        }

"""Markdown of model cards: tables of names and values."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["markdown_table", "numbers"]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; floats are shown with four significant digits, None as null."""
    lines = [_line(head), "|" + "---|" * len(head)]
    return "\n".join([*lines, *(_line([_cell(value) for value in row]) for row in rows)])


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested mappings, under its dotted name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", value


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "null" if value is None else str(value)

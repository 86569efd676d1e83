"""The texts of stages that fan out: the items that a list is cut into, and outputs put together."""

import re
from collections.abc import Sequence

__all__ = ["items", "numbered"]

# "1. ", "(2) ", "c) ", "- ", "* " and the like; a lone number is an item and not a numbering.
_NUMBERING = re.compile(r"^\s*(?:\(?(?:\d{1,3}|[A-Za-z])[.):]|[-*•])\s+")


def items(text: str, most: int) -> list[str]:
    """The lines of ``text`` that are not empty, without their numbering, at most ``most``."""
    lines = (_NUMBERING.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line][:most]


def numbered(texts: Sequence[str]) -> str:
    """Several outputs as one text: ``1. first``, an empty line, ``2. second``."""
    return "\n\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1))

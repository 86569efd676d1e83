"""What a reader of published data hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Published"]


@dataclass(frozen=True, slots=True)
class Published:
    """Steps of one engine, from published data.

    Attributes:
        rows: rows of the steps table.
        left_out: how many rows of the source stand for no step, by reason.
        facts: what the provenance says about them beside that; JSON values.
        fitted_kv_tokens: size of the KV cache that explains times of whole runs best.
    """

    rows: Sequence[Mapping[str, Any]]
    left_out: Mapping[str, int]
    facts: Mapping[str, Any]
    fitted_kv_tokens: int | None = None

"""What a recording's journal holds: finished requests, outcomes, and ends of programs.

One piece each, so that whatever was finished is on the disk at once and nothing is written twice.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from chimera_train.config import Settings

__all__ = ["Brief", "Outcome", "brief", "end_piece", "key", "outcome_piece"]


class Outcome(Settings):
    """How a program went: ``score`` (0..1), or whether it was ``correct``.

    Attributes:
        question_id: of what it was asked, over what its requests said; so is ``task``.
    """

    score: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    correct: bool | None = Field(default=None, strict=True)
    question_id: str | None = Field(default=None, min_length=1, max_length=256)
    task: str | None = Field(default=None, min_length=1, max_length=256)

    @model_validator(mode="after")
    def _one_of_two(self) -> "Outcome":
        if (self.score is None) == (self.correct is None):
            raise ValueError("give either 'score', from 0 to 1, or 'correct'")
        return self

    @property
    def value(self) -> float:
        """The score."""
        return float(self.correct or False) if self.score is None else self.score


class Brief(NamedTuple):
    """What is wanted of every piece at any time.

    Attributes:
        kind: ``request``, ``outcome`` or ``end``.
        program_id: as stored.
        name: of the program, as its client calls it.
        place: of a request in its program, from 0.
        start_ms, end_ms: of a request, since 1970; both the time of another piece.
        is_last: no further request belongs to the program.
    """

    kind: str
    program_id: str
    name: str
    place: int
    start_ms: float
    end_ms: float
    is_last: bool

    @property
    def key(self) -> str:
        """What tells the piece from others; a later outcome replaces an earlier one."""
        return f"{self.kind} {self.place} {self.program_id}"


def outcome_piece(program_id: str, name: str, outcome: Outcome, now_ms: float) -> dict[str, Any]:
    """A posted outcome."""
    said = {
        "score": outcome.value,
        "question_id": outcome.question_id,
        "task": outcome.task,
    }
    return {"program_id": program_id, "name": name, "outcome": said, "at_ms": now_ms}


def end_piece(program_id: str, name: str, now_ms: float) -> dict[str, Any]:
    """The end of a program, as its client says."""
    return {"program_id": program_id, "name": name, "end": True, "at_ms": now_ms}


def brief(piece: Mapping[str, Any]) -> Brief:
    """The brief of a piece."""
    who = (str(piece["program_id"]), str(piece["name"]))
    if "request" in piece:
        times = (piece["start_ms"], piece["end_ms"])
        return Brief("request", *who, piece["request"], *times, piece["is_last"])
    kind = "outcome" if "outcome" in piece else "end"
    return Brief(kind, *who, 0, piece["at_ms"], piece["at_ms"], is_last=True)


def key(piece: Mapping[str, Any]) -> str:
    """The key of a piece."""
    return brief(piece).key

"""A program as every source gives it, and as a line of the project's own import format is."""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    JsonValue,
    ValidationError,
    model_validator,
)

__all__ = ["ImportedProgram", "ImportedStage", "asked_id", "text_id", "word_tokens", "wrong_with"]

Name = Annotated[str, Field(min_length=1)]
Milliseconds = Annotated[FiniteFloat, Field(ge=0)]
Int32 = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[int, Field(ge=0, lt=2**63)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Row(BaseModel):
    # Other fields are allowed, and reported: logs hold more than a table has columns for.
    model_config = ConfigDict(extra="allow", frozen=True)


class ImportedStage(_Row):
    """A row of the table ``stages``; its fields are the table's columns."""

    stage: Name
    prompt_tokens: Tokens
    output_tokens: Tokens
    role: str | None = None
    system_tokens: Tokens | None = None
    user_tokens: Tokens | None = None
    finish_reason: str | None = None
    queue_ms: Milliseconds | None = None
    ttft_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    max_tokens: Int32 | None = None
    temperature: FiniteFloat | None = None
    priority: FiniteFloat | None = None
    attempt: Int32 = 1
    error: str | None = None
    reasoning_tokens: Tokens | None = None
    top_p: FiniteFloat | None = None
    seed: Seed | None = None
    tool: str | None = None
    branch: Int32 | None = None
    start_ms: Milliseconds | None = None
    after: list[Int32] | None = None
    system_text: str | None = None
    user_text: str | None = None
    output_text: str | None = None

    @model_validator(mode="after")
    def _tools_have_no_tokens(self) -> Self:
        if self.tool is not None and (self.prompt_tokens or self.output_tokens):
            raise ValueError("a tool has no tokens")
        return self


class ImportedProgram(_Row):
    """One program; what is absent is unknown.

    Attributes:
        question: text of the question; it or ``question_id`` is there.
        question_id: without it, a hash of the question's text but for case and white space.
        correct: the outcome, true, false, or 0 to 1; ``score`` is another name of it.
        stages: in order of their start.
        program_id: without it, model, workflow and question, and how many of the same came before.
    """

    model: Name
    stages: Annotated[list[ImportedStage], Field(min_length=1)]
    question: str | None = None
    question_id: Name | None = None
    task: Name = "imported"
    workflow: Name = "imported"
    correct: Share | None = None
    score: Share | None = None
    metadata: dict[str, JsonValue] = {}
    program_id: Name | None = None
    engine: str | None = None
    sample: Int32 | None = None
    seed: Seed | None = None
    started_at: datetime | None = None
    program_latency_ms: Milliseconds | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _has_a_question(self) -> Self:
        if self.question_id is None and not (self.question and self.question.strip()):
            raise ValueError("it has neither a question_id nor a question")
        if self.correct is not None and self.score is not None and self.correct != self.score:
            raise ValueError("'correct' and 'score' contradict each other")
        n = len(self.stages)
        if any(other >= n for stage in self.stages for other in stage.after or ()):
            raise ValueError("a stage waits for one that is not there")
        return self

    @property
    def outcome(self) -> float | None:
        """0 to 1, None where nobody graded it."""
        return self.correct if self.score is None else self.score

    @property
    def failure(self) -> str | None:
        """Why the program failed, None if it completed: at least one of its calls did."""
        errors = [stage.error for stage in self.stages if stage.tool is None]
        if self.error is None and all(error is not None for error in errors):
            return errors[-1] if errors else "it made no LLM call"
        return self.error


def wrong_with(error: ValidationError) -> str:
    """The first thing that is wrong with a program, for people."""
    first = error.errors()[0]
    # Places in lists are left out, so that the same mistake is the same reason.
    name = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if first["type"] == "missing":
        return f"'{name}' is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name}: {message[:1].lower()}{message[1:]}".removeprefix(": ")


def text_id(text: str) -> str:
    """The same for texts that differ in case, punctuation or white space alone."""
    return asked_id(" ".join(re.findall(r"\w+", text.lower())))


def asked_id(text: str, secret: bytes = b"") -> str:
    """The same for texts that differ in case or white space alone: not for ``2+2`` and ``2-2``.

    With a ``secret`` nobody who lacks it can find out whether it is of a certain text.
    """
    normalised = " ".join(text.lower().split())
    return hashlib.sha256(secret + normalised.encode()).hexdigest()[:16]


def word_tokens(text: str) -> int:
    """Words and punctuation marks, which stand for the tokens of a text without a tokenizer."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def columns(row: _Row, *without: str) -> dict[str, Any]:
    """The fields of a row that are columns of a table."""
    return {name: getattr(row, name) for name in type(row).model_fields if name not in without}

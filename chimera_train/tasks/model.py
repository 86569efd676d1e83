"""A task is a source of questions together with the grader that judges answers to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Question", "Task", "Verdict"]


@dataclass(frozen=True, slots=True)
class Question:
    """One item of a task.

    ``text`` is what the models are shown, ``answer`` the gold answer as text (for code: the hidden
    tests as JSON), and ``metadata`` whatever the task knows about the item (difficulty, subject)
    for splits and reports. Nothing in ``metadata`` is shown to a model.
    """

    question_id: str
    task: str
    text: str
    answer: str
    metadata: dict[str, str | int | float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A score in 0..1, and in a few words why it is not 1."""

    score: float
    reason: str = ""


class Task(Protocol):
    """What collection needs from a task."""

    @property
    def name(self) -> str:
        """The name that the user types."""
        ...

    def questions(self, limit: int, seed: int) -> list[Question]:
        """At most ``limit`` questions; the same arguments give the same questions.

        Raises:
            ConfigError, DataError: there are no such questions; see the task.
        """
        ...

    def grade(self, question: Question, text: str) -> float:
        """Score of a model's whole output ``text`` on ``question``, in 0..1.

        Never raises, returns in bounded time, and may be called from several threads at once.
        """
        ...

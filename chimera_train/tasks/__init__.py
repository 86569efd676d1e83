"""Tasks by name: questions and the graders that judge answers to them."""

from __future__ import annotations

from dataclasses import dataclass

from chimera_train.errors import ConfigError
from chimera_train.tasks import arithmetic
from chimera_train.tasks.model import Question, Task

__all__ = ["Question", "Task", "get_task"]


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """The generated word problems behind the ``Task`` protocol."""

    name: str = arithmetic.NAME

    def questions(self, limit: int, seed: int) -> list[Question]:
        return arithmetic.generate(limit, seed)

    def grade(self, question: Question, text: str) -> float:
        return arithmetic.grade(question, text)


def get_task(name: str) -> Task:
    """Return the task called ``name``.

    Raises:
        ConfigError: there is no task of that name.
    """
    if name == arithmetic.NAME:
        return _Arithmetic()
    raise ConfigError(f"unknown task {name!r}: known tasks are {arithmetic.NAME}")

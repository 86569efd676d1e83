"""A task whose questions are rows of data."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from chimera_train.errors import ConfigError, DataError
from chimera_train.tasks.model import Question, Verdict
from chimera_train.tasks.rows import Row, read_rows
from chimera_train.tasks.settings import TaskSettings

__all__ = ["DataTask", "Grader"]


class Grader(Protocol):
    """What one kind of task does with rows and with answers."""

    def read(self, row: Row) -> tuple[str, str]:
        """The text that models are shown, and the gold answer as text."""
        ...

    def judge(self, question: Question, text: str) -> Verdict:
        """The verdict on a model's whole output; from any thread, in bounded time."""
        ...

    def close(self) -> None:
        """End what is held between answers."""
        ...


@dataclass(frozen=True)
class DataTask:
    """Questions out of a data set or file, and the grader of their kind."""

    settings: TaskSettings
    task_file: Path
    grader: Grader = field(repr=False)

    @property
    def name(self) -> str:
        """The task's name."""
        return self.settings.name

    def questions(self, limit: int, seed: int) -> list[Question]:
        """At most ``limit`` questions, drawn by ``seed``; a longer list begins with a shorter one.

        Raises:
            ConfigError: ``limit`` is negative, or the data is in another kind of file.
            DataError: the data is missing or damaged, or a row has not what is mapped.
        """
        if limit < 0:
            raise ConfigError(f"the number of questions must not be negative, got {limit}")
        order = list(range(len(self.all_questions)))
        random.Random(f"{self.name}-{seed}").shuffle(order)
        return [self.all_questions[index] for index in order[:limit]]

    @cached_property
    def all_questions(self) -> Sequence[Question]:
        """Every question, in the order of the data.

        Raises:
            ConfigError, DataError: as ``questions``.
        """
        found: dict[str, str] = {}
        questions = []
        for row in read_rows(self.settings.source, self.task_file):
            question = self._question(row)
            if question.question_id in found:
                raise DataError(
                    f"{row.where} has the id of {found[question.question_id]},"
                    f" '{question.question_id}': map fields.id in {self.task_file} to a field that"
                    " differs in each row, or leave it out."
                )
            found[question.question_id] = row.where
            questions.append(question)
        return questions

    def judge(self, question: Question, text: str) -> Verdict:
        """The score of a model's output and why it is not 1; never raises."""
        try:
            return self.grader.judge(question, text)
        except Exception as error:  # whatever a model writes must not end a collection
            return Verdict(0.0, f"could not be graded: {type(error).__name__}: {error}"[:300])

    def grade(self, question: Question, text: str) -> float:
        """The score of a model's output, in 0..1; never raises."""
        return self.judge(question, text).score

    def _question(self, row: Row) -> Question:
        fields = self.settings.fields
        number = row.number if fields.id is None else row.text(fields.id, "id")
        text, answer = self.grader.read(row)
        metadata = {
            name: value if isinstance(value, str | int | float) else str(value)
            for name in self.settings.metadata
            if (value := row.values.get(name)) is not None
        }
        return Question(f"{self.name}-{number}", self.name, text, answer, metadata)

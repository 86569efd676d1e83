"""Tasks by name or file: questions, and the graders that judge answers to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chimera_train.errors import ConfigError
from chimera_train.tasks import arithmetic
from chimera_train.tasks.choice import ChoiceGrader
from chimera_train.tasks.code import CodeGrader
from chimera_train.tasks.data_task import DataTask
from chimera_train.tasks.exact_text import TextGrader
from chimera_train.tasks.isolate import isolation
from chimera_train.tasks.mathematics import MathGrader
from chimera_train.tasks.model import Question, Task, Verdict
from chimera_train.tasks.settings import (
    ChoiceSettings,
    CodeSettings,
    DataSource,
    MathSettings,
    TaskSettings,
    load_settings,
)

_log = logging.getLogger(__name__)

__all__ = ["CodeTask", "Question", "Task", "Verdict", "get_task", "open_task"]


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """The generated word problems behind the ``Task`` protocol."""

    name: str = arithmetic.NAME

    def questions(self, limit: int, seed: int) -> list[Question]:
        return arithmetic.generate(limit, seed)

    def grade(self, question: Question, text: str) -> float:
        return arithmetic.grade(question, text)


class CodeTask(DataTask):
    """A task whose answers are programs; these run in sandboxes."""

    grader: CodeGrader

    def public_tests(self, question: Question, text: str) -> str:
        """A report on how an answer does in the tests that the question shows; never raises.

        At most about 1,000 characters, of which the last line is ``accept`` or ``reject``.
        """
        try:
            return self.grader.public_tests(question, text)
        except Exception as error:  # whatever a model writes must not end a collection
            return f"The tests could not be run: {type(error).__name__}.\nreject"


@contextmanager
def open_task(
    name_or_path: str, *, data: str | None = None, allow_code_execution: bool = False
) -> Iterator[Task]:
    """The task of that name or YAML file, until the end of the block.

    ``data`` is a file, or a directory for ``datasets``, to read instead of the task's own source.
    Without ``allow_code_execution`` a task that runs what models wrote is refused.

    Raises:
        ConfigError: there is no such task, its file is wrong, or it may or can not run code.
    """
    task = get_task(name_or_path, data=data)
    if isinstance(task, CodeTask):
        if not allow_code_execution:
            raise ConfigError(
                f"Task '{task.name}' runs programs that models write: allow it with"
                " --allow-code-execution."
            )
        how = isolation()  # raises where no program can be run, before anything else is done
        if how != "bubblewrap":
            _log.warning(
                "programs are kept apart by '%s' only, which leaves the network or files within"
                " their reach: install bubblewrap",
                how,
            )
    try:
        yield task
    finally:
        if isinstance(task, DataTask):
            task.grader.close()


def get_task(name_or_path: str, *, data: str | None = None) -> Task:
    """The task of that name or YAML file, for its questions; to grade answers, open it.

    Raises:
        ConfigError: there is no such task, its file is wrong, or it reads no ``data``.
    """
    if name_or_path == arithmetic.NAME:
        if data is not None:
            raise ConfigError(f"task '{arithmetic.NAME}' makes its questions: leave --data out.")
        return _Arithmetic()
    settings, path = load_settings(name_or_path)
    if data is not None:
        settings = settings.model_copy(update={"source": _source(data, settings)})
    if isinstance(settings, CodeSettings):
        return CodeTask(settings, path, CodeGrader(settings))
    if isinstance(settings, MathSettings):
        return DataTask(settings, path, MathGrader(settings))
    if isinstance(settings, ChoiceSettings):
        return DataTask(settings, path, ChoiceGrader(settings))
    return DataTask(settings, path, TextGrader(settings))


def _source(data: str, settings: TaskSettings) -> DataSource:
    if Path(data).is_dir():
        return DataSource(dataset=data, split=settings.source.split)
    return DataSource(file=Path(data).absolute())

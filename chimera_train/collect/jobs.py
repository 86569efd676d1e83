"""What a collection consists of: one program for every question, sample and model."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field, model_validator

from chimera_train.config import Settings
from chimera_train.tasks.model import Question, Task
from chimera_train.workflows.model import Workflow

__all__ = ["CollectSettings", "Job", "identity", "plan_jobs"]


class CollectSettings(Settings):
    """How much to collect, and how.

    Attributes:
        limit: number of questions.
        samples: programs for each question and model.
        concurrency: programs in flight at each engine.
        temperature: of every request.
        seed: draws the questions and seeds every request.
        texts: keep the texts of stages, not only their lengths.
    """

    limit: int = Field(100, gt=0)
    samples: int = Field(1, gt=0)
    concurrency: int = Field(8, gt=0)
    temperature: float = Field(0.0, ge=0)
    seed: int = Field(0, ge=0)
    texts: bool = True

    @model_validator(mode="after")
    def _samples_can_differ(self) -> "CollectSettings":
        if self.samples > 1 and self.temperature == 0:
            raise ValueError("several samples need a temperature above 0, or all are the same")
        return self


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run.

    ``program_id`` is a hash of everything that decides what the program does, so that the same
    program has the same id in every run and in every data set.
    """

    program_id: str
    model: str
    question: Question
    sample: int


def plan_jobs(
    workflow: Workflow,
    questions: Sequence[Question],
    models: Sequence[str],
    settings: CollectSettings,
) -> list[Job]:
    """Every program, the first samples of all questions before the second ones."""
    return [
        Job(_program_id(workflow, question, model, sample, settings), model, question, sample)
        for sample in range(settings.samples)
        for question in questions
        for model in models
    ]


def identity(
    task: Task,
    workflow: Workflow,
    questions: Sequence[Question],
    models: Sequence[str],
    settings: CollectSettings,
) -> dict[str, Any]:
    """The settings that decide which programs a data set holds and what is kept of them.

    Concurrency is not among them: a collection may go on with another one.
    """
    return {
        "task": task.name,
        "questions": {"sha256": _sha256([asdict(question) for question in questions])},
        "workflow": workflow.model_dump(mode="json"),
        "models": sorted(models),
        **settings.model_dump(mode="json", exclude={"concurrency"}),
    }


def _program_id(
    workflow: Workflow, question: Question, model: str, sample: int, settings: CollectSettings
) -> str:
    key = [
        question.task,
        question.question_id,
        question.text,
        workflow.model_dump(mode="json"),
        model,
        sample,
        settings.seed,
        settings.temperature,
    ]
    return _sha256(key)[:24]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""What a collection consists of: one program for every question, sample and model."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from pydantic import Field, field_validator

from chimera_train.collect.runner import Sampling
from chimera_train.config import Settings
from chimera_train.errors import ConfigError
from chimera_train.tasks.model import Question, Task
from chimera_train.traces.split import hashed
from chimera_train.workflows.model import Workflow

__all__ = ["CollectSettings", "Job", "identity", "plan_jobs", "require_variety", "shard"]

_SHARD = re.compile(r"([1-9]\d*)/([1-9]\d*)")


class CollectSettings(Settings):
    """How much to collect, and how.

    Attributes:
        limit: number of questions.
        samples: programs for each question and model.
        concurrency: requests, and programs, in flight at each engine at most.
        temperature, top_p: of stages for which the workflow does not say; no ``top_p`` leaves it to
            the engine.
        max_tokens: of every stage, in place of the workflow's.
        seed: draws the questions and seeds every request.
        texts: keep the texts of stages, not only their lengths.
        shard: ``i/n``: only the i-th of n parts of the questions, by a hash of their ids.
    """

    limit: int = Field(100, gt=0)
    samples: int = Field(1, gt=0)
    concurrency: int = Field(8, gt=0)
    temperature: float = Field(0.0, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, gt=0, lt=2**31)
    seed: int = Field(0, ge=0)
    texts: bool = True
    shard: str | None = None

    @field_validator("shard")
    @classmethod
    def _is_one_of_n(cls, value: str | None) -> str | None:
        if value is not None:
            match = _SHARD.fullmatch(value)
            if match is None or int(match[1]) > int(match[2]):
                raise ValueError(f"'{value}' is not like 1/4: part and number of parts, from 1")
        return value

    @property
    def sampling(self) -> Sampling:
        """What it says of requests."""
        return Sampling(self.seed, self.temperature, self.top_p, self.max_tokens)


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


def shard(questions: Sequence[Question], part: str | None) -> list[Question]:
    """The questions of shard ``part`` (``i/n``), in order; None: all of them."""
    if part is None:
        return list(questions)
    index, parts = map(int, part.split("/"))
    names = pd.Series([question.question_id for question in questions], dtype=object)
    mine = hashed(names, "shard", parts) == index - 1
    return [question for question, is_mine in zip(questions, mine, strict=True) if is_mine]


def require_variety(workflow: Workflow, settings: CollectSettings) -> None:
    """Refuse to collect the same output several times.

    Raises:
        ConfigError: samples, or copies of a stage, would be greedy, and so all the same.
    """
    calls = [stage for stage in workflow.stages if stage.tool is None]
    greedy = [
        stage
        for stage in calls
        if not (settings.temperature if stage.temperature is None else stage.temperature)
    ]
    if settings.samples > 1 and len(greedy) == len(calls):
        raise ConfigError(
            "collect traces: several samples need a temperature above 0, or all are the same."
        )
    for stage in greedy:
        if isinstance(stage.fan_out, int):
            raise ConfigError(
                f"collect traces: the {stage.fan_out} copies of stage '{stage.id}' need a"
                " temperature above 0, or all are the same."
            )


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
        **_decisive(settings),
    }


def _decisive(settings: CollectSettings) -> dict[str, Any]:
    values = settings.model_dump(mode="json", exclude={"concurrency"})
    # What is not said may not tell a directory from one of before it could be said.
    return {name: value for name, value in values.items() if value is not None}


def _program_id(
    workflow: Workflow, question: Question, model: str, sample: int, settings: CollectSettings
) -> str:
    key: list[Any] = [
        question.task,
        question.question_id,
        question.text,
        workflow.model_dump(mode="json"),
        model,
        sample,
        settings.seed,
        settings.temperature,
    ]
    if said := settings.model_dump(include={"top_p", "max_tokens"}, exclude_none=True):
        key.append(said)
    return _sha256(key)[:24]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()

"""The plan of a collection: every combination once, and ids that mean the same everywhere."""

from typing import Any

import pytest
from pydantic import ValidationError

from chimera_train.collect.jobs import (
    CollectSettings,
    identity,
    plan_jobs,
    require_variety,
    shard,
)
from chimera_train.errors import ConfigError
from chimera_train.workflows.model import Workflow, load_workflow

MODELS = ["a", "b"]


def plan(task: Any, workflow: Workflow, models: list[str] = MODELS, **settings: Any) -> Any:
    settings = {"limit": 3, "samples": 2, "temperature": 0.5, **settings}
    made = CollectSettings(**settings)
    return plan_jobs(workflow, task.questions(made.limit, made.seed), models, made)


def test_every_combination_once_first_samples_first(task: Any, workflow: Workflow) -> None:
    jobs = plan(task, workflow)
    keys = [(job.sample, job.question.question_id, job.model) for job in jobs]
    assert keys == [
        (sample, f"numbers-0-{question}", model)
        for sample in range(2)
        for question in range(3)
        for model in MODELS
    ]
    assert len({job.program_id for job in jobs}) == len(jobs)


def test_ids_do_not_depend_on_what_else_is_collected(task: Any, workflow: Workflow) -> None:
    few = {job.program_id for job in plan(task, workflow, limit=2, samples=1)}
    many = {job.program_id for job in plan(task, workflow, models=["c", "b", "a"], limit=5)}
    assert few < many


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"temperature": 0.6}, {"top_p": 0.9}, {"max_tokens": 9}],
    ids=lambda change: next(iter(change)),
)
def test_ids_depend_on_what_requests_are_sampled_by(
    task: Any, workflow: Workflow, change: Any
) -> None:
    ids = {job.program_id for job in plan(task, workflow)}
    assert ids.isdisjoint(job.program_id for job in plan(task, workflow, **change))


def test_ids_depend_on_the_definition_of_the_workflow(task: Any, workflow: Workflow) -> None:
    values = workflow.model_dump()
    values["stages"][0]["max_tokens"] += 1
    changed = Workflow.model_validate(values)
    ids = {job.program_id for job in plan(task, workflow)}
    assert ids.isdisjoint(job.program_id for job in plan(task, changed))


def test_identity_is_all_settings_but_concurrency(task: Any, workflow: Workflow) -> None:
    def of(**settings: Any) -> dict[str, Any]:
        made = CollectSettings(**settings)
        questions = task.questions(made.limit, made.seed)
        return identity(task, workflow, questions, MODELS, made)

    assert of(concurrency=1) == of(concurrency=2)
    changes = ({"limit": 4}, {"seed": 4}, {"texts": False}, {"temperature": 0.1}, {"shard": "1/2"})
    for change in changes:
        assert of(**change) != of()
    assert of(limit=4)["questions"] != of()["questions"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 0}, "greater than 0"),
        ({"samples": 0}, "greater than 0"),
        ({"concurrency": -1}, "greater than 0"),
        ({"temperature": -0.1}, "greater than or equal to 0"),
        ({"top_p": 0}, "greater than 0"),
        ({"top_p": 1.1}, "less than or equal to 1"),
        ({"max_tokens": 0}, "greater than 0"),
        ({"shard": "0/4"}, "'0/4' is not like 1/4"),
        ({"shard": "5/4"}, "'5/4' is not like 1/4"),
        ({"shard": "1"}, "'1' is not like 1/4"),
        ({"limits": 3}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CollectSettings(**settings)


def test_ids_of_collections_from_before_stages_could_say_more_stay(task: Any) -> None:
    """Computed by the version that knew neither fan-out, tools nor sampling of stages."""
    (job,) = plan_jobs(load_workflow("math"), task.questions(1, 0), ["a"], CollectSettings())
    assert job.program_id == "b14d15b38ac7fafd50bf4946"
    stored = identity(task, load_workflow("math"), task.questions(1, 0), ["a"], CollectSettings())
    assert set(stored) == {
        "task", "questions", "workflow", "models", "limit", "samples", "temperature", "seed",
        "texts",
    }  # fmt: skip
    assert set(stored["workflow"]["stages"][0]) == {
        "id", "role", "system", "user", "depends_on", "when", "max_tokens",
    }  # fmt: skip


def test_shards_are_a_partition_that_does_not_depend_on_the_other_questions(task: Any) -> None:
    questions = task.questions(40, 0)
    parts = [shard(questions, f"{index}/3") for index in (1, 2, 3)]
    assert sorted(q.question_id for part in parts for q in part) == sorted(
        q.question_id for q in questions
    )
    assert all(parts)
    assert shard(questions[:9], "2/3") == [q for q in questions[:9] if q in parts[1]]
    assert shard(questions, None) == questions


@pytest.mark.parametrize(
    ("settings", "change", "words"),
    [
        ({"samples": 2}, {}, "several samples need a temperature above 0"),
        ({}, {"fan_out": 3}, "the 3 copies of stage 'verify' need a temperature above 0"),
        ({}, {"fan_out": 3, "temperature": 0.0}, "copies of stage 'verify'"),
    ],
)
def test_the_same_output_is_not_collected_twice(
    workflow: Workflow, settings: Any, change: Any, words: str
) -> None:
    values = workflow.model_dump()
    values["stages"][1] |= change
    values["stages"] = values["stages"][:2]
    values["answer"] = ["solve"]
    with pytest.raises(ConfigError, match=words):
        require_variety(Workflow.model_validate(values), CollectSettings(**settings))
    values["stages"][1] |= {"temperature": 0.5}
    require_variety(Workflow.model_validate(values), CollectSettings(**settings))

"""The plan of a collection: every combination once, and ids that mean the same everywhere."""

from typing import Any

import pytest
from pydantic import ValidationError

from chimera_train.collect.jobs import CollectSettings, identity, plan_jobs
from chimera_train.workflows.model import Workflow

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
    "change", [{"seed": 1}, {"temperature": 0.6}], ids=lambda change: next(iter(change))
)
def test_ids_depend_on_seed_and_temperature(task: Any, workflow: Workflow, change: Any) -> None:
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
    for change in ({"limit": 4}, {"seed": 4}, {"texts": False}, {"temperature": 0.1}):
        assert of(**change) != of()
    assert of(limit=4)["questions"] != of()["questions"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"limit": 0}, "greater than 0"),
        ({"samples": 0}, "greater than 0"),
        ({"concurrency": -1}, "greater than 0"),
        ({"temperature": -0.1}, "greater than or equal to 0"),
        ({"samples": 2}, "temperature above 0"),
        ({"limits": 3}, "Extra inputs"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        CollectSettings(**settings)

"""Stages as they were when they arrived, against tables written by hand."""

from typing import Any

import pandas as pd
import pytest

from chimera_train.history import History
from chimera_train.traces.history import stage_history
from chimera_train.traces.schemas import SCHEMAS
from chimera_train.traces.store import Traces


def stage(program: str, index: int, name: str, tokens: int, **values: Any) -> dict[str, Any]:
    return {
        "program_id": program, "stage_index": index, "stage": name, "prompt_tokens": 100 + index,
        "system_tokens": 10, "user_tokens": 80, "output_tokens": tokens,
        "user_text": f"user {index}", "finish_reason": "stop", **values,
    }  # fmt: skip


STAGES = [
    stage("p2", 0, "solve", 7),
    stage("p1", 2, "solve", 40),  # rejected, hence called again
    stage("p1", 0, "solve", 30),
    stage("p1", 1, "verify", 5),
    stage("left out", 0, "solve", 9),
]


@pytest.fixture
def build():
    def build(stages: list[dict[str, Any]], text: str | None = "the question") -> Traces:
        def frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
            schema = SCHEMAS[name]
            return pd.DataFrame(rows, columns=schema.names)

        programs = [
            {"program_id": name, "question_id": "q", "workflow": "math", "model": f"m-{name}"}
            for name in ("p1", "p2")
        ]
        questions = [{"question_id": "q", "task": "t", "text": text}]
        return Traces(
            frame("programs", programs), frame("stages", stages), frame("questions", questions)
        )

    return build


def test_each_stage_knows_those_before_it(build) -> None:
    rows = stage_history(build(STAGES))
    assert rows["program_id"].tolist() == ["p1", "p1", "p1", "p2"]
    assert rows["stage"].tolist() == ["solve", "verify", "solve", "solve"]
    assert rows["model"].tolist() == ["m-p1"] * 3 + ["m-p2"]
    solved = History().after("solve", 100, 30)
    verified = solved.after("verify", 101, 5)
    assert rows["history"].tolist() == [History(), solved, verified, History()]
    assert rows["generated_tokens"].tolist() == [0, 30, 35, 0]
    assert [h.generated_tokens for h in rows["history"]] == rows["generated_tokens"].tolist()


def test_a_stage_that_failed_is_no_history(build) -> None:
    stages = [*STAGES, stage("p1", 3, "verify", 0, error="timeout"), stage("p1", 4, "verify", 6)]
    rows = stage_history(build(stages))
    last = rows[rows["program_id"] == "p1"].iloc[-1]
    assert (last["prompt_tokens"], last["history"].stages) == (104, ("solve", "verify", "solve"))


def test_the_question_stands_in_for_a_text_and_the_prompt_for_its_parts(build) -> None:
    unknown = {"user_text": None, "system_tokens": None, "user_tokens": None}
    stages = [stage("p1", 0, "solve", 3, **unknown), stage("p1", 1, "verify", 3)]
    rows = stage_history(build(stages))
    assert rows["text"].tolist() == ["the question", "user 1"]
    assert rows["system_tokens"].tolist() == [0, 10]
    assert rows["user_tokens"].tolist() == [100, 80]
    assert stage_history(build(stages, text=None))["text"].tolist() == ["", "user 1"]

from typing import Any

import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.history import History
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.predict.features import StageRequest
from chimera_train.traces.split import fold


def test_targets_and_history(builder: Any) -> None:
    builder.add("q1", "a question", [40, 3, 20])
    builder.add("q2", "another", [7], model="package:large")
    rows = stage_rows(builder.traces())
    first = rows[rows["question_id"] == "q1"]
    assert first["stage"].tolist() == ["solve", "verify", "revise"]
    assert first["target_tokens"].tolist() == [63, 23, 20]
    assert first["generated_tokens"].tolist() == [0, 40, 43]
    other = rows[rows["question_id"] == "q2"].iloc[0]
    assert (other["target_tokens"], other["model"]) == (7, "package:large")
    assert rows["fold"].tolist() == [fold(question) for question in rows["question_id"]]


def test_the_order_of_the_tables_does_not_matter(builder: Any) -> None:
    for number in range(6):
        builder.add(f"q{number}", f"text {number}", [number + 1, 2, 3])
    traces = builder.traces()
    expected = stage_rows(traces)
    traces.stages[:] = traces.stages.sample(frac=1, random_state=0).to_numpy()
    traces.programs[:] = traces.programs.sample(frac=1, random_state=1).to_numpy()
    pd.testing.assert_frame_equal(stage_rows(traces), expected, check_dtype=False)


def test_rows_become_the_requests_of_the_gateway(builder: Any) -> None:
    builder.add("q1", "a question", [40, 3])
    assert stage_requests(stage_rows(builder.traces())) == [
        StageRequest("math", "solve", "a question", 11, 12, 30),
        StageRequest("math", "verify", "a question", 11, 22, 40, History().after("solve", 30, 40)),
    ]


def test_what_was_not_recorded(builder: Any) -> None:
    builder.add("stored", "the question", [4])
    builder.add("nowhere", None, [4])
    for stage in builder.stages:
        stage.update(user_text=None, system_tokens=None, user_tokens=None)
    rows = stage_rows(builder.traces()).set_index("question_id")
    assert rows["text"].to_dict() == {"stored": "the question", "nowhere": ""}
    assert rows["system_tokens"].tolist() == [0, 0]
    assert rows["user_tokens"].tolist() == rows["prompt_tokens"].tolist()


def test_failed_attempts_are_left_out(builder: Any) -> None:
    builder.add("q1", "a", [40, 3])
    builder.stages[0]["error"] = "timed out"
    builder.programs[0]["total_output_tokens"] = 3
    assert stage_rows(builder.traces())["target_tokens"].tolist() == [3]


@pytest.mark.parametrize("column", ["output_tokens", "prompt_tokens", "system_tokens"])
def test_less_than_no_tokens_are_refused(builder: Any, column: str) -> None:
    builder.add("q1", "a", [40, 3])
    builder.stages[1][column] = -5
    builder.programs[0]["total_output_tokens"] = builder.stages[1]["output_tokens"] + 40
    with pytest.raises(DataError, match=rf"Stage 'verify' of program .*q1/0' has -5 {column}"):
        stage_rows(builder.traces())


@pytest.mark.parametrize(("keep", "found"), [(1, "40"), (0, "none")])
def test_tables_that_do_not_belong_together(builder: Any, keep: int, found: str) -> None:
    builder.add("q1", "a", [40, 3])
    del builder.stages[keep:]
    with pytest.raises(DataError, match=f"generated 43 tokens, but its stages add up to {found}"):
        stage_rows(builder.traces())

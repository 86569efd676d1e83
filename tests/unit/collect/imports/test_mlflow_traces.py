"""MLflow's JSON of traces; tests/integration reads them from a real store."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chimera_train.errors import DataError

Run = Callable[..., Any]


def span(name: str, kind: str, start_ms: int, end_ms: int, **attributes: Any) -> dict[str, Any]:
    attributes = {"spanType": kind} | attributes
    return {
        "span_id": name,
        "parent_span_id": None if name == "solve" else attributes.pop("parent", "solve"),
        "name": name,
        "start_time_unix_nano": 1_796_089_508_000_000_000 + start_ms * 1_000_000,
        "end_time_unix_nano": 1_796_089_508_000_000_000 + end_ms * 1_000_000,
        "status": {"code": "STATUS_CODE_OK", "message": ""},
        "attributes": {f"mlflow.{k}": json.dumps(v) for k, v in attributes.items()},
    }


def trace(*feedback: Any) -> dict[str, Any]:
    call = {
        "spanInputs": {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Two and two?"},
            ],
            "model": "m1",
            "temperature": 0.5,
            "max_tokens": 5,
        },
        "spanOutputs": {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]},
        "chat.tokenUsage": {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10},
        "llm.model": "m1",
    }
    return {
        "info": {
            "trace_id": "tr-1",
            "assessments": [
                {"assessment_name": "correctness", "feedback": {"value": value}, "valid": True}
                for value in feedback
            ],
        },
        "data": {
            "spans": [
                span("solve", "AGENT", 0, 90),
                span("planner", "AGENT", 0, 40),
                span("chat", "CHAT_MODEL", 0, 30, parent="planner", **call),
                span("calc", "TOOL", 30, 35),
                span("chat_2", "CHAT_MODEL", 35, 80, **call),
            ]
        },
    }


def test_a_trace_is_a_program(lines: Run, imported: Run) -> None:
    got = imported("mlflow", lines(trace(False, "yes")))
    (program,) = got.programs.to_dict("records")
    assert (program["program_id"], program["workflow"], program["model"]) == ("tr-1", "solve", "m1")
    assert (program["score"], program["program_latency_ms"]) == (1, 80)
    assert got.stages["stage"].tolist() == ["planner", "calc", "call2"]
    assert got.stages["tool"].tolist() == [None, "calc", None]
    row = got.stages.iloc[0]
    assert (row["prompt_tokens"], row["output_tokens"], row["max_tokens"]) == (9, 1, 5)
    assert (row["system_text"], row["user_text"], row["output_text"]) == (
        "Be brief.",
        "Two and two?",
        "4",
    )
    assert got.report.left_out.rows == 2


def test_a_list_of_traces_without_feedback(tmp_path: Any, imported: Run) -> None:
    file = tmp_path / "traces.json"
    empty = {"info": {"trace_id": "x"}, "data": {"spans": []}}
    file.write_text(json.dumps([trace(), {"info": {}}, empty], indent=1))
    got = imported("mlflow", str(file), skip_invalid=True)
    assert got.programs["score"].isna().all()
    assert got.report.invalid.sentences() == [
        f"1 row: not the JSON of an MLflow trace (KeyError('data')) (at {file}, item 2)"
    ]
    assert got.report.left_out["a trace without spans"].rows == 1


def test_a_store_without_an_experiment_is_refused(imported: Run) -> None:
    with pytest.raises(DataError, match="names no experiment: give URI#EXPERIMENT"):
        imported("mlflow", "sqlite:///no.db")

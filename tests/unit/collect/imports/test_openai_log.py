"""Requests and responses of the OpenAI API."""

from collections.abc import Callable
from typing import Any

import pytest

from chimera_train.errors import DataError

Run = Callable[..., Any]

REQUEST = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    ],
    "max_completion_tokens": 50,
}
RESPONSE = {
    "model": "m-2031-05-06",
    "choices": [{"message": {"role": "assistant", "content": "So."}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}


def test_a_request_with_its_response_is_a_program(lines: Run, imported: Run) -> None:
    got = imported("openai", lines({"request": REQUEST, "response": RESPONSE, "correct": True}))
    (program,) = got.programs.to_dict("records")
    assert (program["model"], program["score"]) == ("m", 1)
    (row,) = got.stages.to_dict("records")
    assert (row["stage"], row["prompt_tokens"], row["output_tokens"]) == ("call1", 9, 4)
    assert (row["reasoning_tokens"], row["max_tokens"]) == (1, 50)
    assert (row["system_text"], row["user_text"], row["output_text"]) == (
        "Be brief.",
        "Why?",
        "So.",
    )


def test_lines_with_one_program_id_are_its_stages(lines: Run, imported: Run) -> None:
    def line(stage: str, start: str, end: str, **fields: Any) -> dict[str, Any]:
        metadata = {"program_id": "p", "workflow": "w", "stage": stage}
        request = {**REQUEST, "metadata": metadata}
        times = {"started_at": f"2031-05-06T07:08:{start}", "ended_at": f"2031-05-06T07:08:{end}"}
        return {"request": request, "response": RESPONSE, **times, **fields}

    later = line("check", "04", "06", score=0.5)
    got = imported("openai", lines(later, line("solve", "01", "03.5")))
    (program,) = got.programs.to_dict("records")
    assert (program["program_id"], program["workflow"], program["score"]) == ("p", "w", 0.5)
    assert program["program_latency_ms"] == 5000
    assert got.stages["stage"].tolist() == ["solve", "check"]
    assert got.stages["start_ms"].tolist() == [0, 3000]
    assert got.stages["e2e_ms"].tolist() == [2500, 2000]


def test_the_two_files_of_a_batch_belong_together(lines: Run, imported: Run) -> None:
    asked = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": REQUEST}
        for name in ("a", "b", "c")
    ]
    answers = [
        {"id": "1", "custom_id": "b", "response": {"status_code": 200, "body": RESPONSE}},
        {"id": "2", "custom_id": "a", "response": {"status_code": 500, "body": {}}, "error": None},
    ]
    got = imported("openai", lines(*answers, name="out.jsonl"), lines(*asked, name="in.jsonl"))
    assert got.programs["program_id"].tolist() == ["b", "a"]
    assert got.programs["error"].tolist() == [None, "HTTP 500"]
    assert got.stages["user_text"].tolist() == ["Why?", "Why?"]
    assert got.report.left_out["a request of its program has no response"].rows == 1


def test_lines_of_litellm(lines: Run, imported: Run) -> None:
    line = {
        "id": "chatcmpl-1", "trace_id": "t", "call_type": "acompletion", "model": "m",
        "messages": REQUEST["messages"], "response": RESPONSE, "startTime": 1_900_000_000.0,
        "completionStartTime": 1_900_000_000.25, "endTime": 1_900_000_001.5,
        "model_parameters": {"temperature": 0.5}, "metadata": {"user_api_key_alias": "x"},
    }  # fmt: skip
    got = imported("openai", lines(line))
    (row,) = got.stages.to_dict("records")
    assert (row["program_id"], row["ttft_ms"], row["e2e_ms"]) == ("t", 250, 1500)
    assert row["temperature"] == 0.5


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"hello": 1}, "it has neither a request nor a response"),
        ({"request": REQUEST, "response": {"choices": []}}, "'usage' is missing"),
        ({"request": {}, "response": {"usage": RESPONSE["usage"]}}, "'model' is missing"),
        ({"request": REQUEST, "response": RESPONSE, "started_at": "soon"}, "Invalid isoformat"),
        ({"request": REQUEST, "response": RESPONSE, "timestamp": 1.7e18}, "not in the expected"),
        ({"request": "x", "response": RESPONSE}, "request or response is not an object"),
        ({"request": REQUEST, "response": {"usage": {"a": 1}}}, "stages.prompt_tokens: input"),
    ],
)
def test_a_line_without_what_is_needed(lines: Run, imported: Run, line: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        imported("openai", lines(line))


def test_calls_of_one_program_to_two_models_are_left_out(lines: Run, imported: Run) -> None:
    one = {"request": REQUEST, "response": RESPONSE, "trace_id": "t"}
    two = {**one, "request": {**REQUEST, "model": "n"}}
    got = imported("openai", lines(one, two, {**one, "trace_id": "u"}))
    assert got.programs["program_id"].tolist() == ["u"]
    assert got.report.left_out["the calls of its program went to several models"].rows == 2

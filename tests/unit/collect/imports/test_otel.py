"""OpenTelemetry traces of the GenAI conventions."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import set_span_in_context

from chimera_train.errors import DataError

Run = Callable[..., Any]

KINDS = {str: "stringValue", int: "intValue", float: "doubleValue", bool: "boolValue"}


def value(item: Any) -> dict[str, Any]:
    if isinstance(item, list):
        return {"arrayValue": {"values": [value(each) for each in item]}}
    return {KINDS[type(item)]: str(item) if type(item) is int else item}


def span(
    name: str, start_ms: float, end_ms: float, parent: str = "root", trace: str = "t", **of: Any
) -> dict[str, Any]:
    """A span whose id is its name; attributes with __ for dots."""
    status = of.pop("status", {})
    attributes = [{"key": k.replace("__", "."), "value": value(v)} for k, v in of.items()]
    return {
        "traceId": trace,
        "spanId": name,
        "parentSpanId": "" if name == parent else parent,
        "name": name,
        "startTimeUnixNano": str(round(1e18 + start_ms * 1e6)),
        "endTimeUnixNano": str(round(1e18 + end_ms * 1e6)),
        "attributes": attributes,
        "status": status,
    }


def chat(name: str, start_ms: float, end_ms: float, **of: Any) -> dict[str, Any]:
    return span(
        name,
        start_ms,
        end_ms,
        **{
            "gen_ai__operation__name": "chat",
            "gen_ai__request__model": "m",
            "gen_ai__usage__input_tokens": 7,
            "gen_ai__usage__output_tokens": 3,
        }
        | of,
    )


def export(*spans: dict[str, Any]) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def test_a_trace_is_a_program_wherever_its_spans_are(lines: Run, imported: Run) -> None:
    messages = [{"role": "user", "parts": [{"type": "text", "content": "Why?"}]}]
    output = [{"role": "assistant", "parts": [{"type": "text", "content": "So."}]}]
    first = chat(
        "a", 10, 40, parent="planner",
        gen_ai__input__messages=json.dumps(messages),
        gen_ai__output__messages=json.dumps(output),
        gen_ai__system_instructions='[{"type": "text", "content": "Be brief."}]',
        gen_ai__response__finish_reasons=["stop"],
        gen_ai__response__time_to_first_chunk=0.005,
        gen_ai__usage__reasoning__output_tokens=2,
    )  # fmt: skip
    got = imported(
        "otel",
        lines(
            export(chat("x", 0, 1, trace="other"), first),
            export(
                span("search", 40, 60, gen_ai__operation__name="execute_tool"),
                chat("b", 60, 90, chimera__stage="answer"),
                span("planner", 5, 95, gen_ai__agent__name="planner"),
                span("root", 0, 99, chimera__score=1, chimera__task="qa"),
            ),
        ),
    )
    assert got.report.left_out["neither an LLM call nor a tool"].rows == 2
    assert got.programs["program_id"].tolist() == ["other", "t"]
    program = got.programs.iloc[1]
    assert (program["task"], program["workflow"], program["score"]) == ("qa", "root", 1)
    assert program["program_latency_ms"] == 80
    stages = got.stages[got.stages["program_id"] == "t"]
    assert stages["stage"].tolist() == ["planner", "search", "answer"]
    assert stages["tool"].tolist() == [None, "search", None]
    assert stages["start_ms"].tolist() == [0, 30, 50]
    assert stages["e2e_ms"].tolist() == [30, 20, 30]
    row = stages.iloc[0]
    assert (row["system_text"], row["user_text"], row["output_text"]) == (
        "Be brief.",
        "Why?",
        "So.",
    )
    assert (row["ttft_ms"], row["finish_reason"], row["reasoning_tokens"]) == (5, "stop", 2)
    assert got.questions["text"].tolist() == [None, "Why?"]


def test_old_names_are_read_too(lines: Run, imported: Run) -> None:
    old = span(
        "call", 0, 5, parent="call",
        gen_ai__system="vllm", gen_ai__response__model="m",
        gen_ai__usage__prompt_tokens=5, gen_ai__usage__completion_tokens=2,
        gen_ai__latency__time_in_queue=0.25, gen_ai__latency__time_to_first_token=0.5,
        gen_ai__prompt__1__content="Why?", gen_ai__prompt__1__role="user",
        gen_ai__prompt__0__content="Be brief.", gen_ai__prompt__0__role="system",
        gen_ai__completion__0__content="So.",
    )  # fmt: skip
    (row,) = imported("otel", lines(export(old))).stages.to_dict("records")
    assert (row["prompt_tokens"], row["output_tokens"]) == (5, 2)
    assert (row["queue_ms"], row["ttft_ms"]) == (250, 500)
    assert (row["system_text"], row["user_text"], row["output_text"]) == (
        "Be brief.",
        "Why?",
        "So.",
    )


def test_parallel_calls_wait_for_what_had_ended(lines: Run, imported: Run) -> None:
    spans = [chat("plan", 0, 10), chat("a", 10, 30), chat("b", 11, 20), chat("judge", 30, 40)]
    got = imported("otel", lines(export(*spans)))
    after = [None if a is None else a.tolist() for a in got.stages["after"]]
    assert after == [None, None, [0], [1, 2]]


def test_traces_that_are_no_program_are_left_out(lines: Run, imported: Run) -> None:
    uncounted = chat("call", 0, 5, trace="uncounted")
    uncounted["attributes"] = uncounted["attributes"][:2]
    got = imported(
        "otel",
        lines(
            export(chat("good", 0, 1, trace="good")),
            export(
                chat("outer", 0, 9, trace="nested"),
                chat("inner", 1, 8, parent="outer", trace="nested"),
            ),
            export(
                chat("a", 0, 1, trace="two"),
                chat("b", 2, 3, trace="two", gen_ai__request__model="n"),
            ),
            export(uncounted),
            export(span("tool", 0, 1, trace="tool", gen_ai__operation__name="execute_tool")),
        ),
    )
    assert got.programs["program_id"].tolist() == ["good", "nested"]
    assert {reason: rows.rows for reason, rows in got.report.left_out.items()} == {
        "inside of another LLM call": 1,
        "the calls of its trace went to several models": 2,
        "an LLM call of its trace has no token counts": 1,
        "its trace has no LLM call": 1,
    }


def test_a_failed_call_is_an_error(lines: Run, imported: Run) -> None:
    failed = span(
        "call", 0, 5, gen_ai__operation__name="chat", gen_ai__request__model="m",
        status={"code": 2, "message": "HTTP 503"},
    )  # fmt: skip
    got = imported("otel", lines(export(failed, chat("again", 6, 9))))
    assert got.stages["error"].tolist() == ["HTTP 503", None]
    assert got.programs["error"].tolist() == [None]


@pytest.mark.parametrize(
    "bad", [{"spans": []}, {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}]
)
def test_another_form_is_refused(lines: Run, imported: Run, bad: Any) -> None:
    with pytest.raises(DataError, match="1 of 1 rows are invalid"):
        imported("otel", lines(bad))


def test_a_span_of_odd_values_is_refused(lines: Run, imported: Run) -> None:
    odd = chat("call", 0, 5, gen_ai__latency__time_in_queue="long")
    file = lines(export(odd, span("root", 0, 9)), export(chat("x", 0, 1, trace="other")))
    with pytest.raises(DataError, match=r"2 of 3 rows are invalid.*not in the expected form"):
        imported("otel", file)
    assert len(imported("otel", file, skip_invalid=True).programs) == 1


def test_what_the_real_sdk_exports(lines: Run, imported: Run) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("agent")
    root = tracer.start_span("workflow")
    agent = tracer.start_span(
        "invoke_agent", set_span_in_context(root), attributes={"gen_ai.agent.name": "solver"}
    )
    call = tracer.start_span(
        "chat m",
        set_span_in_context(agent),
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 11,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.response.finish_reasons": ["stop"],
        },
    )
    for each in (call, agent, root):
        each.end()
    got = imported("otel", lines(MessageToDict(encode_spans(memory.get_finished_spans()))))
    assert got.programs["workflow"].tolist() == ["workflow"]
    (row,) = got.stages.to_dict("records")
    assert (row["stage"], row["prompt_tokens"], row["finish_reason"]) == ("solver", 11, "stop")

"""OpenTelemetry spans of the GenAI conventions, as OTLP JSON (the collector's file exporter).

A row is a span. What is read of an LLM call's attributes, the newest name first:

====================  ==========================================================================
model                 gen_ai.request.model, gen_ai.response.model, llm.model_name
prompt tokens         gen_ai.usage.input_tokens, gen_ai.usage.prompt_tokens,
                      llm.usage.prompt_tokens, llm.token_count.prompt
output tokens         gen_ai.usage.output_tokens, gen_ai.usage.completion_tokens,
                      llm.usage.completion_tokens, llm.token_count.completion
texts                 gen_ai.system_instructions, gen_ai.input.messages, gen_ai.output.messages;
                      gen_ai.prompt.N.content, gen_ai.completion.N.content
times                 gen_ai.response.time_to_first_chunk; vLLM's gen_ai.latency.time_to_first_token
                      and gen_ai.latency.time_in_queue
====================  ==========================================================================

``gen_ai.operation.name``, or ``openinference.span.kind`` or ``traceloop.span.kind``, tells a call
or a tool from other spans; a span without any of them is a call if it counts prompt tokens.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.collect.imports.files import MALFORMED, json_values
from chimera_train.collect.imports.groups import grouping
from chimera_train.collect.imports.messages import prompt_texts, texts_of, unpacked
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.spans import Described, Span, program_of
from chimera_train.collect.imports.write import Found

__all__ = ["describe", "otel"]

_PROMPT_TOKENS = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
_OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
)
_MODEL = ("gen_ai.request.model", "gen_ai.response.model", "llm.model_name")
_KIND = ("gen_ai.operation.name", "openinference.span.kind", "traceloop.span.kind")
_LLM = {"chat", "text_completion", "generate_content", "completion", "llm"}
_TOOL = {"execute_tool", "tool"}
_NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(role|content)")
_ERROR = (2, "STATUS_CODE_ERROR")


def otel(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of traces; the spans of one may be anywhere in the files."""
    with grouping() as groups:
        for place, value in json_values(files, report):
            report.read -= 1  # a line is no row
            try:
                spans = list(_spans(value))
            except MALFORMED as error:
                report.read += 1
                report.invalid.add(f"not OTLP JSON ({error!r})", place)
                continue
            for span in spans:
                report.read += 1
                try:
                    groups.add(span["traceId"], float(span["startTimeUnixNano"]), place, span)
                except MALFORMED:
                    report.invalid.add("a span without traceId or startTimeUnixNano", place)
        for trace_id, items in groups:
            try:
                found = [_span(place, value) for place, value in items]
            except MALFORMED as error:
                report.invalid.add(
                    f"a span of its trace is not in the expected form ({error!r})",
                    items[0].place,
                    len(items),
                )
                continue
            program = program_of(trace_id, found, describe, report)
            if program is not None:
                yield program


def _spans(value: Any) -> Iterator[dict[str, Any]]:
    for resource in value["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            yield from scope["spans"]


def _span(place: str, value: Mapping[str, Any]) -> Span:
    status = value.get("status") or {}
    attributes = {item["key"]: _value(item["value"]) for item in value.get("attributes", ())}
    is_error = status.get("code") in _ERROR
    return Span(
        place=place,
        span_id=value["spanId"],
        parent_id=value.get("parentSpanId") or None,
        name=value["name"],
        start_ns=int(value["startTimeUnixNano"]),
        end_ns=int(value["endTimeUnixNano"]),
        error=(status.get("message") or attributes.get("error.type") or "failed")
        if is_error
        else None,
        attributes=attributes,
    )


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)
    if kind == "arrayValue":
        return [_value(item) for item in content.get("values", ())]
    if kind == "kvlistValue":
        return {item["key"]: _value(item["value"]) for item in content.get("values", ())}
    return content


def describe(span: Span) -> Described:
    """What a span is by its attributes."""
    of = span.attributes
    kind = str(_first(of, _KIND) or "").lower()
    agent = of.get("gen_ai.agent.name")
    if kind in _TOOL:
        return Described("tool", stage={"tool": of.get("gen_ai.tool.name", span.name)})
    if kind not in _LLM and (kind or _first(of, _PROMPT_TOKENS) is None):
        return Described("other", agent=agent)
    ttft_s = _first(
        of, ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token")
    )
    queue_s = of.get("gen_ai.latency.time_in_queue")
    reasons = of.get("gen_ai.response.finish_reasons")
    return Described(
        "llm",
        agent=agent,
        model=_first(of, _MODEL),
        stage={
            "prompt_tokens": _first(of, _PROMPT_TOKENS),
            "output_tokens": _first(of, _OUTPUT_TOKENS),
            "reasoning_tokens": of.get("gen_ai.usage.reasoning.output_tokens"),
            "ttft_ms": None if ttft_s is None else ttft_s * 1e3,
            "queue_ms": None if queue_s is None else queue_s * 1e3,
            "temperature": of.get("gen_ai.request.temperature"),
            "top_p": of.get("gen_ai.request.top_p"),
            "seed": _first(of, ("gen_ai.request.seed", "gen_ai.openai.request.seed")),
            "max_tokens": of.get("gen_ai.request.max_tokens"),
            "finish_reason": reasons[0] if reasons else None,
            **_texts(of),
        },
    )


def _texts(of: Mapping[str, Any]) -> dict[str, str | None]:
    system, user = prompt_texts(unpacked(of.get("gen_ai.input.messages")))
    output = texts_of(unpacked(of.get("gen_ai.output.messages")))
    instructions = texts_of(unpacked(of.get("gen_ai.system_instructions")))
    if user is None:
        numbered: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
        for name, value in of.items():
            if match := _NUMBERED.fullmatch(name):
                side, number, part = match.groups()
                numbered[side].setdefault(int(number), {})[part] = value
        system, user = prompt_texts([message for _, message in sorted(numbered["prompt"].items())])
        output = [
            text for _, message in sorted(numbered["completion"].items())
            for text in texts_of(message)
        ]  # fmt: skip
    return {
        "system_text": "\n".join(instructions) or system,
        "user_text": user,
        "output_text": "\n".join(output) or None,
    }


def _first(of: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((of[name] for name in names if of.get(name) is not None), None)

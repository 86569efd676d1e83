"""Requests and responses of the OpenAI API as JSON lines; a line is a row.

Read are lines of the Batch API, input ``{"custom_id", "body"}`` and output ``{"custom_id",
"response": {"body"}}``, in any order and in one file or several; ``{"request", "response"}`` with
the bodies; and LiteLLM's ``{"model", "messages", "response"}``, with ``trace_id``, ``startTime``,
``endTime`` and ``completionStartTime``.

Lines with the same ``program_id`` or ``trace_id`` are one program, its stages in order of time;
any other line is one of its own. ``program_id``, ``workflow``, ``stage``, ``question_id``,
``task`` and ``correct`` or ``score`` are read from the line or from its, or the request's,
``metadata``. Times are ISO 8601, or seconds or milliseconds since the epoch.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from chimera_train.collect.imports.files import MALFORMED, json_values, parsed
from chimera_train.collect.imports.groups import Item, grouping
from chimera_train.collect.imports.messages import output_text, prompt_texts
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found

__all__ = ["openai_log"]

_NAMES = ("program_id", "workflow", "stage", "question_id", "task", "correct", "score")
_START = ("started_at", "start_time", "startTime", "timestamp")
_END = ("ended_at", "end_time", "endTime")
_FIRST = ("first_token_at", "completionStartTime")


def openai_log(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of requests and responses."""
    with grouping() as groups:
        for number, (place, entry) in enumerate(parsed(json_values(files, report), report, _entry)):
            key = entry["key"] or place
            groups.add(key, entry["start_s"] or float(number), place, entry)
        for key, items in groups:
            yield from _program(key, items, report)


def _entry(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line in one form: request, response, error, times in seconds, names."""
    request = line.get("request") or line.get("body")
    response = line.get("response")
    if request is None and "messages" in line:
        request = {**(line.get("model_parameters") or {}), "messages": line["messages"]}
        request["model"] = line.get("model")
    error = line.get("error") or line.get("error_str")
    if isinstance(response, Mapping) and "body" in response:  # of the Batch API
        if response.get("status_code", 200) >= 400:
            error = f"HTTP {response['status_code']}"
        response = response["body"]
    if not isinstance(request, Mapping | None) or not isinstance(response, Mapping | None):
        raise TypeError("request or response is not an object")
    if request is None and response is None and error is None:
        raise LookupError("it has neither a request nor a response")
    sources = ((request or {}).get("metadata"), line.get("metadata"), line)
    names = {
        name: of[name]
        for of in sources
        if isinstance(of, Mapping)
        for name in _NAMES
        if of.get(name) is not None
    }
    start, end, first = (_seconds(line, keys) for keys in (_START, _END, _FIRST))
    batch = line.get("custom_id")
    return {
        "key": names.get("program_id") or line.get("trace_id") or batch,
        "is_batch": batch is not None,
        "request": request,
        "response": response,
        "error": None if error is None else _message(error),
        "names": names,
        "start_s": start,
        "e2e_ms": line.get("latency_ms") if None in (start, end) else (end - start) * 1e3,
        "ttft_ms": line.get("ttft_ms") if None in (start, first) else (first - start) * 1e3,
    }


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error)


def _seconds(line: Mapping[str, Any], names: Sequence[str]) -> Any:
    value = next((line[name] for name in names if line.get(name) is not None), None)
    if isinstance(value, str):
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    if value is None:
        return None
    return value / 1e3 if value > 1e11 else float(value)


def _program(key: str, items: Sequence[Item], report: Report) -> Iterator[Found]:
    place = items[0].place
    entries = [item.value for item in items]
    rows = len(entries)
    if all(entry["is_batch"] for entry in entries) and rows > 1:
        # The two sides of one request.
        request = next((e["request"] for e in entries if e["request"] is not None), None)
        answer = next((e for e in entries if e["response"] or e["error"]), entries[0])
        names = {name: value for e in entries for name, value in e["names"].items()}
        entries = [{**answer, "request": request, "names": names}]
    if any(entry["response"] is None and entry["error"] is None for entry in entries):
        report.left_out.add("a request of its program has no response", place, rows)
        return
    try:
        stages = [_stage(number, entry) for number, entry in enumerate(entries, start=1)]
        models = {_model(entry) for entry in entries}
        fields = _fields(key, place, entries, stages)
    except MALFORMED as error:
        report.invalid.add(f"not in the expected form ({error})", place, rows)
        return
    if len(models) > 1:
        report.left_out.add("the calls of its program went to several models", place, rows)
        return
    yield Found(place, fields | {"model": models.pop()}, rows)


def _fields(
    key: str,
    place: str,
    entries: Sequence[Mapping[str, Any]],
    stages: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    names: dict[str, Any] = {}
    for entry in entries:
        names |= entry["names"]
    names.pop("stage", None)
    question = stages[0]["user_text"]
    start, last = entries[0]["start_s"], entries[-1]
    ends = None not in (start, last["start_s"], last["e2e_ms"])
    return {
        **({} if key == place else {"program_id": key}),
        **({} if question else {"question_id": key}),
        "question": question,
        "started_at": None if start is None else datetime.fromtimestamp(start, UTC),
        "program_latency_ms": (last["start_s"] - start) * 1e3 + last["e2e_ms"] if ends else None,
        "stages": [
            {**stage, "start_ms": (entry["start_s"] - start) * 1e3} if entry["start_s"] else stage
            for stage, entry in zip(stages, entries, strict=True)
        ],
        **names,
    }


def _model(entry: Mapping[str, Any]) -> str:
    # What was asked for is the name in the pool; a response may add a date to it.
    model = (entry["request"] or {}).get("model") or (entry["response"] or {}).get("model")
    if not model:
        raise LookupError("'model' is missing")
    return str(model)


def _stage(number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    request, response = entry["request"] or {}, entry["response"] or {}
    is_error = entry["error"] is not None
    usage = response.get("usage") or {}
    if not usage and not is_error:
        raise LookupError("'usage' is missing")
    # Chat and completions; then the names of the Responses API.
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0 if is_error else None))
    output = usage.get("completion_tokens", usage.get("output_tokens", 0 if is_error else None))
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    choices = response.get("choices") or response.get("output") or [{}]
    asked = request.get("messages", request.get("input", request.get("prompt")))
    system, user = prompt_texts(asked)
    return {
        "stage": entry["names"].get("stage", f"call{number}"),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "reasoning_tokens": details.get("reasoning_tokens"),
        "finish_reason": choices[0].get("finish_reason"),
        "ttft_ms": entry["ttft_ms"],
        "e2e_ms": entry["e2e_ms"],
        "max_tokens": request.get("max_completion_tokens", request.get("max_tokens")),
        "temperature": request.get("temperature"),
        "top_p": request.get("top_p"),
        "seed": request.get("seed"),
        "error": entry["error"],
        "system_text": system,
        "user_text": user,
        "output_text": output_text(choices),
    }

"""MLflow traces: their JSON (``Trace.to_json``), or a tracking URI with ``#`` and an experiment.

A row is a span. Spans of type CHAT_MODEL and LLM are calls, with ``mlflow.chat.tokenUsage`` and the
model of their inputs or ``mlflow.llm.model``, as autologging writes them; TOOL is a tool, and AGENT
and CHAIN, but for the root, name who made a call. The outcome is feedback called ``correctness``,
``correct`` or ``score``: yes or no, true or false, or 0 to 1; the last one counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.collect.imports.files import MALFORMED, json_values
from chimera_train.collect.imports.messages import output_text, prompt_texts, unpacked
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.spans import Described, Span, program_of
from chimera_train.collect.imports.write import Found
from chimera_train.errors import ChimeraError, DataError

__all__ = ["mlflow_traces"]

_FEEDBACK = ("correctness", "correct", "score")
_VERDICTS = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_PAGE = 100


def mlflow_traces(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of traces, of files and of tracking URIs."""
    for name in files:
        values = _from_store(name, report) if "://" in name else json_values([name], report)
        for place, value in values:
            report.read -= 1  # a trace is no row
            yield from _program(place, value, report)


def _program(place: str, value: Any, report: Report) -> Iterator[Found]:
    try:
        info, spans = value["info"], value["data"]["spans"]
        found = [_span(place, span) for span in spans]
        trace_id, extra = info["trace_id"], _outcome(info)
    except MALFORMED as error:
        report.read += 1
        report.invalid.add(f"not the JSON of an MLflow trace ({error!r})", place)
        return
    report.read += len(found)
    if not found:
        report.read += 1
        report.left_out.add("a trace without spans", place)
        return
    program = program_of(trace_id, found, _describe, report, extra)
    if program is not None:
        yield program


def _from_store(uri: str, report: Report) -> Iterator[tuple[str, Any]]:
    store, _, experiment = uri.partition("#")
    if not experiment:
        raise DataError(f"{uri} names no experiment: give URI#EXPERIMENT.")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise ChimeraError(
            "MLflow is not installed: pip install 'chimera-train[pipeline]'."
        ) from error
    try:
        client = MlflowClient(tracking_uri=store)
        known = client.get_experiment_by_name(experiment)
        if known is None:
            raise DataError(f"{store} has no experiment '{experiment}'.")
        token = None
        while True:
            page = client.search_traces(
                locations=[known.experiment_id],
                max_results=_PAGE,
                order_by=["timestamp_ms ASC"],
                page_token=token,
            )
            for trace in page:
                report.read += 1
                yield f"trace {trace.info.trace_id}", trace.to_dict()
            token = page.token
            if not token:
                return
    except MlflowException as error:
        raise DataError(f"{store} cannot be read: {error.message}") from error


def _span(place: str, value: Mapping[str, Any]) -> Span:
    status = value.get("status") or {}
    is_error = status.get("code") == "STATUS_CODE_ERROR"
    return Span(
        place=place,
        span_id=value["span_id"],
        parent_id=value.get("parent_span_id"),
        name=value["name"],
        start_ns=int(value["start_time_unix_nano"]),
        end_ns=int(value["end_time_unix_nano"]),
        error=(status.get("message") or "failed") if is_error else None,
        attributes={name: unpacked(item) for name, item in value["attributes"].items()},
    )


def _describe(span: Span) -> Described:
    of = span.attributes
    kind = of.get("mlflow.spanType")
    if kind == "TOOL":
        return Described("tool")
    if kind not in ("CHAT_MODEL", "LLM"):
        names = kind in ("AGENT", "CHAIN") and span.parent_id is not None
        return Described("other", agent=span.name if names else None)
    inputs, outputs = (_mapping(of.get(f"mlflow.span{side}")) for side in ("Inputs", "Outputs"))
    usage = _mapping(of.get("mlflow.chat.tokenUsage")) or _mapping(outputs.get("usage"))
    choices = outputs.get("choices")
    system, user = prompt_texts(inputs.get("messages", inputs.get("prompt")))
    return Described(
        "llm",
        # What was asked for is the name in the pool; a response may add a date to it.
        model=inputs.get("model") or of.get("mlflow.llm.model"),
        stage={
            "prompt_tokens": usage.get("input_tokens", usage.get("prompt_tokens")),
            "output_tokens": usage.get("output_tokens", usage.get("completion_tokens")),
            "temperature": inputs.get("temperature"),
            "top_p": inputs.get("top_p"),
            "seed": inputs.get("seed"),
            "max_tokens": inputs.get("max_completion_tokens", inputs.get("max_tokens")),
            "finish_reason": _mapping(choices[0]).get("finish_reason") if choices else None,
            "system_text": system,
            "user_text": user,
            "output_text": output_text(choices),
        },
    )


def _outcome(info: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in info.get("assessments") or ():
        if item.get("assessment_name") in _FEEDBACK and item.get("valid", True):
            value = (item.get("feedback") or {}).get("value")
            value = _VERDICTS.get(value.lower()) if isinstance(value, str) else value
            if value is not None:
                found["score"] = float(value)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

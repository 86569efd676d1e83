"""From the spans of a trace to a program.

A trace is a program. Its LLM calls are the stages, in order of their start, and so are its tools;
other spans only tell which agent made a call. A stage is named by ``chimera.stage``, the nearest
agent, or by its number. Which stages waited for which is not in a trace: a stage is taken to have
waited for the last ones that had ended when it started.

Attributes ``chimera.task``, ``chimera.workflow``, ``chimera.question_id``, ``chimera.question`` and
``chimera.score`` of any span are of the program; the workflow is else the root's name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from chimera_train.collect.imports.files import MALFORMED
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found

__all__ = ["Described", "Span", "program_of"]

_PROGRAM = {
    "chimera.task": "task",
    "chimera.workflow": "workflow",
    "chimera.question_id": "question_id",
    "chimera.question": "question",
    "chimera.score": "score",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A span of any tracer; times are nanoseconds since the epoch."""

    place: str
    span_id: str
    parent_id: str | None
    name: str
    start_ns: int
    end_ns: int
    error: str | None
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Described:
    """What a span is.

    Attributes:
        kind: ``other`` is none that there is a row for.
        agent: whom it and what is under it belongs to.
        model: of an LLM call.
        stage: its row in ``stages``, without what the span itself tells.
    """

    kind: Literal["llm", "tool", "other"]
    agent: str | None = None
    model: str | None = None
    stage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The spans of a trace by id, with what they are."""

    spans: Mapping[str, Span]
    described: Mapping[str, Described]

    def above(self, span: Span) -> list[str]:
        """Ids of a span's ancestors that are in the trace, the nearest first."""
        found: list[str] = []
        parent = span.parent_id
        while parent is not None and parent in self.spans and parent not in found:
            found.append(parent)
            parent = self.spans[parent].parent_id
        return found

    def agent(self, span: Span) -> str | None:
        """The nearest agent's name."""
        own = [span.span_id, *self.above(span)]
        return next((self.described[i].agent for i in own if self.described[i].agent), None)


def program_of(
    trace_id: str,
    spans: Sequence[Span],
    describe: Callable[[Span], Described],
    report: Report,
    extra: Mapping[str, Any] | None = None,
) -> Found | None:
    """The program of a trace; ``extra`` are fields that are known otherwise.

    Spans that are in no row, and all those of a trace that is no program, are reported.
    """
    spans = sorted(spans, key=lambda span: (span.start_ns, span.end_ns))
    try:
        tree = _Tree({s.span_id: s for s in spans}, {s.span_id: describe(s) for s in spans})
        unused = {span.span_id: _use(span, tree) for span in spans}
        kept = [(s, tree.described[s.span_id]) for s in spans if unused[s.span_id] is None]
        unusable = _unusable(kept)
        program = {} if unusable else _program(trace_id, tree, kept)
    except MALFORMED as error:
        reason = f"a span of its trace is not in the expected form ({error!r})"
        report.invalid.add(reason, spans[0].place, len(spans))
        return None
    for span in spans:
        why = unused[span.span_id] or unusable
        if why:
            report.left_out.add(why, span.place)
    return None if unusable else Found(kept[0][0].place, program | dict(extra or {}), len(kept))


def _use(span: Span, tree: _Tree) -> str | None:
    """Why a span is no stage; None: it is one."""
    kind = tree.described[span.span_id].kind
    if kind == "other":
        return "neither an LLM call nor a tool"
    above = (tree.described[name].kind for name in tree.above(span))
    return "inside of another LLM call" if kind == "llm" and "llm" in above else None


def _unusable(kept: Sequence[tuple[Span, Described]]) -> str | None:
    calls = [(span, described) for span, described in kept if described.kind == "llm"]
    if not calls:
        return "its trace has no LLM call"
    if len({described.model for _, described in calls if described.model}) > 1:
        return "the calls of its trace went to several models"
    for span, described in calls:
        tokens = (described.stage.get(f"{side}_tokens") for side in ("prompt", "output"))
        if span.error is None and any(n is None for n in tokens):
            return "an LLM call of its trace has no token counts"
    return None


def _program(trace_id: str, tree: _Tree, kept: Sequence[tuple[Span, Described]]) -> dict[str, Any]:
    start = kept[0][0].start_ns
    attributes = [span.attributes for span in tree.spans.values()]
    named = {field: of[name] for of in attributes for name, field in _PROGRAM.items() if name in of}
    root = next((s.name for s in tree.spans.values() if s.parent_id not in tree.spans), None)
    texts = (described.stage.get("user_text") for _, described in kept)
    question = named.pop("question", None) or next((text for text in texts if text), None)
    latency_ms = (max(span.end_ns for span, _ in kept) - start) / 1e6
    return {
        "program_id": trace_id,
        "model": next((described.model for _, described in kept if described.model), None),
        "question": question,
        "workflow": root or "imported",
        "started_at": datetime.fromtimestamp(start / 1e9, UTC),
        "program_latency_ms": latency_ms,
        "stages": list(_stages(tree, kept, start)),
        **({} if question else {"question_id": trace_id}),
        **named,
    }


def _stages(tree: _Tree, kept: Sequence[tuple[Span, Described]], start_ns: int) -> list[Any]:
    rows = []
    n_calls = 0
    for index, (span, described) in enumerate(kept):
        n_calls += described.kind == "llm"
        row = {
            "stage": tree.agent(span) or f"call{n_calls}",
            "start_ms": (span.start_ns - start_ns) / 1e6,
            "e2e_ms": (span.end_ns - span.start_ns) / 1e6,
            "error": span.error,
            "after": _after(index, [other for other, _ in kept]),
        }
        if described.kind == "tool":
            row |= {"stage": span.name, "tool": span.name}
        if described.kind == "tool" or span.error is not None:
            row |= {"prompt_tokens": 0, "output_tokens": 0}
        row |= {name: value for name, value in described.stage.items() if value is not None}
        if "chimera.stage" in span.attributes:
            row["stage"] = span.attributes["chimera.stage"]
        rows.append(row)
    return rows


def _after(index: int, spans: Sequence[Span]) -> list[int] | None:
    """Which spans had ended last when one started; None: the one before it, as is usual."""
    ended = [i for i in range(index) if spans[i].end_ns <= spans[index].start_ns]
    # Who ended before another of them even started has been waited for by that one.
    latest_start = max((spans[i].start_ns for i in ended), default=0)
    last = [i for i in ended if spans[i].end_ns > latest_start]
    return None if last == [index - 1] or index == 0 else last

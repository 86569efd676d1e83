"""The gateway's decision log as programs; a request is a row.

The log has no texts, so a program's question is its id, and lengths that are fitted on it go by
token counts, workflow, stage and history. Outcomes are not in it either.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera_train.collect.imports.groups import Item, grouping
from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.write import Found
from chimera_train.traces.decisions import decision_shards

__all__ = ["decisions"]

_UNNAMED_STAGE = "request"
_UNNAMED_WORKFLOW = "direct"
_COLUMNS = [
    *("time", "program_id", "workflow", "stage", "engine", "model", "priority", "error"),
    *("prompt_tokens", "realised_tokens", "ttft_ms", "e2e_ms", "queue_ms"),
]


def decisions(files: Sequence[str], report: Report) -> Iterator[Found]:
    """Programs of decision logs, each a directory or one of its files."""
    with grouping() as groups:
        for name in files:
            for shard, table in decision_shards(Path(name)):
                for number, row in enumerate(table.select(_COLUMNS).to_pylist(), start=1):
                    report.read += 1
                    start_s = row["time"].timestamp()
                    place = f"{shard}, row {number}"
                    groups.add(row["program_id"], start_s, place, row | {"time": start_s})
        for program_id, items in groups:
            yield from _program(program_id, items, report)


def _program(program_id: str, items: Sequence[Item], report: Report) -> Iterator[Found]:
    place, rows = items[0].place, [item.value for item in items]
    served = [row for row in rows if row["engine"] is not None]
    if not served:
        report.left_out.add("it was refused, or failed before a decision", place, len(rows))
        return
    if len({row["model"] for row in served}) > 1:
        # Its lengths and its score are of no model.
        report.left_out.add("of a program that several models worked on", place, len(rows))
        return
    starts_ms = [1000 * (row["time"] - rows[0]["time"]) for row in rows]
    ends_ms = [start + (row["e2e_ms"] or 0.0) for start, row in zip(starts_ms, rows, strict=True)]
    yield Found(
        place,
        {
            "program_id": program_id,
            "question_id": program_id,
            "task": "live",
            "workflow": rows[0]["workflow"] or _UNNAMED_WORKFLOW,
            "model": served[0]["model"],
            "engine": served[0]["engine"],
            "started_at": rows[0]["time"],
            "program_latency_ms": max(ends_ms),
            "error": next((row["error"] for row in rows if row["error"] is not None), None),
            "stages": [_stage(row, start) for row, start in zip(rows, starts_ms, strict=True)],
        },
        rows=len(rows),
    )


def _stage(row: Mapping[str, Any], start_ms: float) -> dict[str, Any]:
    prompt, output = row["prompt_tokens"], row["realised_tokens"]
    if row["error"] is not None:  # it may have ended before either was known
        prompt, output = prompt or 0, output or 0
    return {
        "stage": row["stage"] or _UNNAMED_STAGE,
        "start_ms": start_ms,
        "prompt_tokens": prompt,
        "output_tokens": output,
        **{name: row[name] for name in ("priority", "ttft_ms", "e2e_ms", "queue_ms", "error")},
    }

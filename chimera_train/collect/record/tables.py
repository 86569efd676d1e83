"""From the journal of a recording to the tables of a data set."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimera_train.collect import provenance
from chimera_train.collect.journal import Journal, Stored
from chimera_train.collect.record.pieces import Brief
from chimera_train.errors import ChimeraError
from chimera_train.files import write_json
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import write_table

__all__ = ["RecordResult", "write_recording"]

# Of programs whose clients named none.
_TASK = "recorded"


@dataclass(frozen=True, slots=True)
class RecordResult:
    """What the tables of a recording hold.

    Attributes:
        programs, stages, questions: rows.
        failed: programs with an error.
        graded: programs with an outcome.
        open: programs that have not ended, which are not in the tables.
    """

    programs: int
    stages: int
    questions: int
    failed: int
    graded: int
    open: int


def write_recording(
    out: Path, stored: Stored | Journal, *, ttl_ms: float, now_ms: float, everything: bool
) -> RecordResult:
    """Write ``programs``, ``stages``, ``questions`` and then the provenance.

    A program is in the tables once it has ended: its client said so or posted its outcome, or it
    was silent for ``ttl_ms`` until ``now_ms``.

    Args:
        out: directory of the data set.
        stored: its journal.
        ttl_ms: as the programs were recorded with.
        now_ms: since 1970.
        everything: take what there is of programs that have not ended, too.

    Without any such program nothing is written.

    Raises:
        ChimeraError: the disk is full or fails.
    """
    recording = _Recording(stored)
    ended = [p for p in recording.programs if everything or recording.has_ended(p, ttl_ms, now_ms)]
    n_open = len(recording.programs) - len(ended)
    if not ended:
        return RecordResult(0, 0, 0, 0, 0, n_open)
    rows: list[dict[str, Any]] = []
    asked: dict[tuple[str, str], str] = {}
    for program in ended:
        row, question = recording.table(program)
        rows.append(row)
        asked.setdefault((question["question_id"], question["task"]), program)
    try:
        write_table(out, "programs", _numbered(rows))
        write_table(out, "stages", (row for p in ended for row in recording.stages(p)))
        write_table(out, "questions", (recording.table(p)[1] for p in asked.values()))
        result = RecordResult(
            programs=len(ended),
            stages=sum(row["n_stages"] for row in rows),
            questions=len(asked),
            failed=sum(row["error"] is not None for row in rows),
            graded=sum(row["score"] is not None for row in rows),
            open=n_open,
        )
        write_json(
            out / provenance.FILE_NAME,
            {
                "schema_version": SCHEMA_VERSION,
                "status": "partial" if n_open else "complete",
                "settings": stored.settings,
                "counts": asdict(result),
                "runs": stored.runs,
                "ended_at": provenance.now(),
            },
        )
    except OSError as error:
        raise ChimeraError(
            f"The tables in {out} cannot be written ({error.strerror or error}): everything is in"
            " the journal; free space and run 'chimera-train collect record --finish' on it."
        ) from error
    return result


class _Recording:
    """The pieces of a journal by program.

    Attributes:
        programs: their ids, in the order in which they were first heard of.
    """

    def __init__(self, stored: Stored | Journal) -> None:
        self._entries = stored.entries
        self._requests: dict[str, list[Brief]] = {}
        self._marks: dict[str, list[Brief]] = {}
        for brief in stored.entries.briefs.values():
            pieces = self._requests if brief.kind == "request" else self._marks
            pieces.setdefault(brief.program_id, []).append(brief)
        for requests in self._requests.values():
            requests.sort(key=lambda brief: brief.place)
        self.programs = list(self._requests)

    def has_ended(self, program_id: str, ttl_ms: float, now_ms: float) -> bool:
        requests = self._requests[program_id]
        last_ms = max(brief.end_ms for brief in requests)
        said = program_id in self._marks or any(brief.is_last for brief in requests)
        return said or now_ms - last_ms >= ttl_ms

    def table(self, program_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The rows of a program in ``programs`` and of what it asked in ``questions``."""
        briefs = self._requests[program_id]
        pieces = [self._entries[brief.key] for brief in briefs]
        outcome = self._outcome(program_id)
        first = pieces[0]
        asked = first["question"] or {"question_id": program_id, "text": None}
        question = {
            **asked,
            "question_id": outcome.get("question_id") or asked["question_id"],
            "task": outcome.get("task") or first["task"] or _TASK,
            "metadata": "{}",
        }
        score = outcome.get("score")
        start_ms = min(brief.start_ms for brief in briefs)
        finished = [piece["stage"] for piece in pieces if piece["stage"]["error"] is None]
        row = {
            "program_id": program_id,
            "task": question["task"],
            "question_id": question["question_id"],
            "workflow": next((p["workflow"] for p in pieces if p["workflow"]), ""),
            "model": first["stage"]["model"],
            "engine": first["engine"],
            "started_at": datetime.fromtimestamp(start_ms / 1000, UTC),
            "program_latency_ms": max(brief.end_ms for brief in briefs) - start_ms,
            "n_stages": len(pieces),
            "total_output_tokens": sum(stage["output_tokens"] for stage in finished),
            "score": score,
            "correct": None if score is None else score >= 1.0,
            "error": _problem(pieces, is_graded=score is not None),
        }
        return row, question

    def stages(self, program_id: str) -> Iterator[dict[str, Any]]:
        """The rows of a program in ``stages``, in the order in which its requests were sent."""
        briefs = self._requests[program_id]
        start_ms = min(brief.start_ms for brief in briefs)
        for index, brief in enumerate(briefs):
            piece = self._entries[brief.key]
            yield {
                **piece["stage"],
                "program_id": program_id,
                "stage_index": index,
                "start_ms": brief.start_ms - start_ms,
                "after": _answered_before(briefs, index),
            }

    def _outcome(self, program_id: str) -> Mapping[str, Any]:
        for mark in self._marks.get(program_id, ()):
            if mark.kind == "outcome":
                outcome: Mapping[str, Any] = self._entries[mark.key]["outcome"]
                return outcome
        return {}


def _answered_before(briefs: Sequence[Brief], index: int) -> list[int]:
    """What a request may have waited for: the last requests that were answered when it was sent.

    Earlier ones, which were answered before one of these was sent, are left out. It may have needed
    fewer: a proxy sees times, not what an application does with an answer.
    """
    sent_ms = briefs[index].start_ms
    before = [i for i in range(index) if briefs[i].end_ms <= sent_ms]
    latest_ms = max((briefs[i].start_ms for i in before), default=0.0)
    return [i for i in before if briefs[i].end_ms > latest_ms]


def _problem(pieces: Sequence[Mapping[str, Any]], *, is_graded: bool) -> str | None:
    """Why a program's lengths or score mean nothing; None where they do."""
    if pieces[-1]["request"] + 1 > len(pieces):
        return "a request of it was not stored: the recording was stopped while it ran"
    models = list(dict.fromkeys(piece["stage"]["model"] for piece in pieces))
    if len(models) > 1:
        return f"its requests went to several models: {', '.join(models)}"
    last: str | None = pieces[-1]["stage"]["error"]
    if all(piece["stage"]["error"] is not None for piece in pieces):
        return last
    # An application that asked again, or that says how it went all the same, has coped.
    return None if is_graded else last


def _numbered(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """With the number of each program among those of its question, workflow and model."""
    seen: Counter[tuple[str, ...]] = Counter()
    for row in rows:
        which = (row["task"], row["question_id"], row["workflow"], row["model"])
        yield {**row, "sample": seen[which]}
        seen[which] += 1

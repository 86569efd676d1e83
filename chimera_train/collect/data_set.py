"""From finished programs to the files of a data set: table rows, the tables, the provenance."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from chimera_train.collect import provenance
from chimera_train.collect.jobs import Job
from chimera_train.collect.journal import Journal
from chimera_train.collect.runner import ProgramResult
from chimera_train.files import read_json_object, write_json
from chimera_train.predict.tokens import TokenCounter
from chimera_train.tasks.model import Question
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import write_table

__all__ = [
    "Counts", "completed_programs", "is_complete", "program_id", "program_row", "stage_rows",
    "write_data_set",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of the tables; ``failed`` programs have an error, ``first_error`` is the first one's."""

    programs: int
    failed: int
    stages: int
    first_error: str | None

    @classmethod
    def of(cls, journal: Journal) -> "Counts":
        """Count what is in ``journal``."""
        entries = journal.entries.values()
        errors = [entry["program"]["error"] for entry in entries]
        errors = [error for error in errors if error is not None]
        stages = sum(len(entry["stages"]) for entry in entries)
        return cls(len(entries), len(errors), stages, errors[0] if errors else None)


def program_id(entry: Mapping[str, Any]) -> str:
    """The program of a journal's entry, ``{"program": row, "stages": [row, ...]}``."""
    return str(entry["program"]["program_id"])


def completed_programs(journal: Journal) -> set[str]:
    """Ids of the programs in ``journal`` that have no error."""
    return {name for name, entry in journal.entries.items() if entry["program"]["error"] is None}


def program_row(
    job: Job, result: ProgramResult, *, workflow: str, engine: str, seed: int, score: float | None
) -> dict[str, Any]:
    """A row of ``programs``; ``score`` is None for a program that failed."""
    return {
        "program_id": job.program_id,
        "task": job.question.task,
        "question_id": job.question.question_id,
        "workflow": workflow,
        "model": job.model,
        "engine": engine,
        "sample": job.sample,
        "seed": seed,
        "started_at": result.started_at.isoformat(timespec="milliseconds"),
        "program_latency_ms": result.latency_ms,
        "n_stages": len(result.stages),
        "total_output_tokens": result.output_tokens,
        "score": score,
        "correct": None if score is None else score >= 1.0,
        "error": result.error,
    }


def stage_rows(
    result: ProgramResult, counter: TokenCounter | None, *, temperature: float, texts: bool
) -> list[dict[str, Any]]:
    """The rows of ``stages``; without ``counter`` the tokens of the parts are unknown."""
    rows = []
    for index, stage in enumerate(result.stages):
        row = asdict(stage)
        row |= {
            "program_id": result.program_id,
            "stage_index": index,
            "temperature": temperature,
            "system_tokens": None if counter is None else counter.count(stage.system_text),
            "user_tokens": None if counter is None else counter.count(stage.user_text),
        }
        if not texts:
            row |= {"system_text": None, "user_text": None, "output_text": None}
        rows.append(row)
    return rows


def is_complete(out: Path) -> bool:
    """Whether the data set in ``out`` has been written and lacks nothing.

    Raises:
        DataError: its provenance is not readable.
    """
    path = out / provenance.FILE_NAME
    return path.exists() and read_json_object(path).get("status") == "complete"


def write_data_set(
    out: Path, journal: Journal, jobs: Sequence[Job], questions: Sequence[Question]
) -> None:
    """Write the programs of ``journal`` in the order of ``jobs``; the provenance last."""
    entries = [journal.entries[job.program_id] for job in jobs if job.program_id in journal.entries]
    write_table(out, "programs", [_with_time(entry["program"]) for entry in entries])
    write_table(out, "stages", [row for entry in entries for row in entry["stages"]])
    write_table(out, "questions", [_question_row(question) for question in questions])
    counts = Counts.of(journal)
    completed = counts.programs - counts.failed
    write_json(
        out / provenance.FILE_NAME,
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete" if completed == len(jobs) else "partial",
            "settings": journal.settings,
            "counts": {
                "programs": counts.programs,
                "failed": counts.failed,
                "stages": counts.stages,
                "questions": len(questions),
            },
            "runs": journal.runs,
            "ended_at": provenance.now(),
        },
    )


def _with_time(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "started_at": datetime.fromisoformat(row["started_at"])}


def _question_row(question: Question) -> dict[str, Any]:
    return {
        "question_id": question.question_id,
        "task": question.task,
        "text": question.text,
        "metadata": json.dumps(question.metadata, sort_keys=True),
    }

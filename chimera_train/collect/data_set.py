"""From finished programs to the files of a data set: table rows, the tables, the provenance."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from chimera_train.collect import provenance
from chimera_train.collect.jobs import Job
from chimera_train.collect.journal import Journal, Pieces, Stored, read_journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.request import StageResult
from chimera_train.collect.runner import ProgramResult
from chimera_train.errors import ChimeraError, DataError
from chimera_train.files import read_json_object, write_json
from chimera_train.predict.tokens import TokenCounter
from chimera_train.tasks.model import Question
from chimera_train.traces.schemas import SCHEMA_VERSION, SCHEMAS
from chimera_train.traces.store import write_table

__all__ = [
    "Brief", "Counts", "brief", "completed_programs", "is_complete", "mean_score", "program_id",
    "program_row", "question_rows", "read_collection", "stage_rows", "write_data_set",
]  # fmt: skip


class Brief(NamedTuple):
    """What is wanted of every program of a journal at any time."""

    error: str | None
    n_stages: int
    score: float | None


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of the tables, and what became of programs.

    Attributes:
        programs, stages: rows.
        failed: programs with an error; ``first_error`` is the first one's.
        mean_score: of the graded programs, 0 to 1; None: none is.
    """

    programs: int
    failed: int
    stages: int
    first_error: str | None
    mean_score: float | None

    @classmethod
    def of(cls, entries: Pieces) -> "Counts":
        """Count what is in a journal that was opened with ``brief``."""
        briefs: Collection[Brief] = entries.briefs.values()
        errors = [brief.error for brief in briefs if brief.error is not None]
        stages = sum(brief.n_stages for brief in briefs)
        first_error = errors[0] if errors else None
        score = mean_score(brief.score for brief in briefs)
        return cls(len(briefs), len(errors), stages, first_error, score)


def mean_score(scores: Iterable[float | None]) -> float | None:
    """The mean of those that are there; None: none is."""
    graded = [score for score in scores if score is not None]
    return fmean(graded) if graded else None


def program_id(entry: Mapping[str, Any]) -> str:
    """The program of a journal's entry, ``{"program": row, "stages": [row, ...]}``."""
    return str(entry["program"]["program_id"])


def brief(entry: Mapping[str, Any]) -> Brief:
    """The brief of a journal's entry."""
    program = entry["program"]
    return Brief(program["error"], len(entry["stages"]), program["score"])


def read_collection(directory: Path, brief: Callable[[Any], Any] = brief) -> Stored:
    """The programs of `collect traces` in ``directory``, to which it may be adding.

    Raises:
        DataError: there is none yet, or the journal is damaged or of something else.
    """
    stored = read_journal(directory, program_id, brief)
    if not isinstance(stored.settings, dict) or "models" not in stored.settings:
        raise DataError(
            f"{directory} has no finished program of 'chimera-train collect traces': wait for the"
            " first, or give another directory."
        )
    return stored


def completed_programs(entries: Pieces) -> set[str]:
    """Ids of the programs in a journal that have no error."""
    return {name for name, brief in entries.briefs.items() if brief.error is None}


def program_row(
    job: Job,
    result: ProgramResult,
    *,
    workflow: str,
    engine: str,
    seed: int,
    score: float | None,
    attempts: int,
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
        "attempts": attempts,
    }


def stage_rows(
    result: ProgramResult, counter: TokenCounter | None, privacy: Privacy
) -> list[dict[str, Any]]:
    """The rows of ``stages``; without ``counter`` the tokens of parts of a text are unknown."""
    rows = []
    for index, stage in enumerate(result.stages):
        row = asdict(stage)
        row |= {
            "program_id": result.program_id,
            "stage_index": index,
            "system_tokens": _count(counter, stage, stage.system_text),
            "user_tokens": _count(counter, stage, stage.user_text),
            "reasoning_tokens": _reasoning_tokens(counter, stage),
        }
        row = privacy.stage(row)
        rows.append({name: row[name] for name in SCHEMAS["stages"].names if name in row})
    return rows


def _count(counter: TokenCounter | None, stage: StageResult, text: str) -> int | None:
    return None if counter is None or stage.tool is not None else counter.count(text)


def _reasoning_tokens(counter: TokenCounter | None, stage: StageResult) -> int | None:
    """Of the output: as the endpoint counted, or as its model's tokenizer counts what it showed."""
    if stage.reasoning_tokens is not None or stage.tool is not None or stage.error is not None:
        return stage.reasoning_tokens
    counted = _count(counter, stage, stage.reasoning_text) if stage.reasoning_text else 0
    # Tokens cut the text at other places than its parts were: never more than all.
    return None if counted is None else min(counted, stage.output_tokens)


def is_complete(out: Path) -> bool:
    """Whether the data set in ``out`` has been written and lacks nothing.

    Raises:
        DataError: its provenance is not readable.
    """
    path = out / provenance.FILE_NAME
    return path.exists() and read_json_object(path).get("status") == "complete"


def write_data_set(
    out: Path,
    settings: Mapping[str, Any],
    stored: Stored | Journal,
    wanted: Sequence[str],
    n_questions: int,
    *,
    is_whole: bool = True,
) -> Counts:
    """Write the programs of a journal in the order of ``wanted`` (their ids); provenance last.

    The table of questions is there already. Without ``is_whole``, more than ``wanted`` belongs to
    the data set.

    Raises:
        ChimeraError: the disk is full or fails; the tables of before stay.
    """
    entries = stored.entries
    here = [name for name in wanted if name in entries]
    counts = Counts.of(entries)
    completed = len(completed_programs(entries))
    try:
        write_table(out, "programs", (_with_time(entries[name]["program"]) for name in here))
        write_table(out, "stages", (row for name in here for row in entries[name]["stages"]))
        write_json(
            out / provenance.FILE_NAME,
            {
                "schema_version": SCHEMA_VERSION,
                "status": "complete" if is_whole and completed == len(wanted) else "partial",
                "settings": settings,
                "counts": {
                    "programs": counts.programs,
                    "failed": counts.failed,
                    "stages": counts.stages,
                    "questions": n_questions,
                },
                "runs": stored.runs,
                "ended_at": provenance.now(),
            },
        )
    except OSError as error:
        raise ChimeraError(
            f"The tables in {out} cannot be written ({error.strerror or error}): every finished"
            " program is in its journal; free space and run the same command again."
        ) from error
    return counts


def _with_time(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "started_at": datetime.fromisoformat(row["started_at"])}


def question_rows(questions: Sequence[Question], privacy: Privacy) -> list[dict[str, Any]]:
    """The rows of ``questions``."""
    return [
        privacy.question(
            {
                "question_id": question.question_id,
                "task": question.task,
                "text": question.text,
                "metadata": json.dumps(question.metadata, sort_keys=True),
            }
        )
        for question in questions
    ]

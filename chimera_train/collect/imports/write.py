"""``collect import``: from programs of any source to the tables of a data set, a few at a time."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from chimera_train import __version__
from chimera_train.collect import provenance
from chimera_train.collect.imports.program import ImportedProgram, asked_id, columns, wrong_with
from chimera_train.collect.imports.report import Report
from chimera_train.collect.privacy import Privacy
from chimera_train.errors import ChimeraError, DataError
from chimera_train.files import replaced_directory, sha256, write_json
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import table_writer

__all__ = ["Found", "Source", "import_programs"]

_BUFFERED_STAGES = 10_000
_TABLES = ("programs", "stages", "questions")


class Found(NamedTuple):
    """What a source makes of some rows.

    Attributes:
        place: of the first of the rows, for people.
        program: the fields of ``ImportedProgram``.
        rows: how many rows it is made of.
    """

    place: str
    program: Mapping[str, Any]
    rows: int = 1


Source = Callable[[Sequence[str], Report], Iterator[Found]]
"""Reads files and counts in the report every row of them that is in no program that it yields."""


@dataclass(slots=True)
class _Tables:
    """Rows on their way to the tables; ``counts`` tells how many of each."""

    privacy: Privacy
    counts: Counter[str] = field(default_factory=Counter)
    _rows: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {name: [] for name in _TABLES}
    )
    # Hashes of ids, for millions of them must fit into memory.
    _programs: set[int] = field(default_factory=set)
    _samples: Counter[int] = field(default_factory=Counter)
    _questions: dict[int, int | None] = field(default_factory=dict)

    def add(self, program: ImportedProgram) -> None:
        """Add the rows of a program.

        Raises:
            ValueError: it contradicts an earlier one.
        """
        question_id = self._question_id(program)
        known = self._questions.get(hash(question_id))
        is_told = program.question is not None and program.question_id is not None
        asked = hash(program.question) if is_told else None
        if known is not None and asked is not None and known != asked:
            raise ValueError("its question_id has another question text than before")
        program_id, sample = self._program_id(program, question_id)
        if hash(program_id) in self._programs:
            raise ValueError("its program_id was there before")
        self._programs.add(hash(program_id))
        if hash(question_id) not in self._questions:
            self._questions[hash(question_id)] = asked
            self._put("questions", self.privacy.question(_question_row(program, question_id)))
        for index, stage in enumerate(program.stages):
            row = {**columns(stage), "program_id": program_id, "stage_index": index}
            self._put("stages", self.privacy.stage(row))
        row = _program_row(program, question_id, program_id, sample)
        self._put("programs", self.privacy.program(row))

    def flush(self, writers: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], None]]) -> None:
        """Hand all rows over."""
        for name, rows in self._rows.items():
            if rows:
                writers[name](rows)
                rows.clear()

    @property
    def is_full(self) -> bool:
        """Whether it is time to."""
        return len(self._rows["stages"]) >= _BUFFERED_STAGES

    def _put(self, table: str, row: dict[str, Any]) -> None:
        self._rows[table].append(row)
        self.counts[table] += 1

    def _question_id(self, program: ImportedProgram) -> str:
        if program.question_id is not None:
            return program.question_id
        key = self.privacy.key
        return f"{program.task}-{asked_id(program.question or '', key.secret if key else b'')}"

    def _program_id(self, program: ImportedProgram, question_id: str) -> tuple[str, int]:
        name = f"{program.model}/{program.workflow}/{question_id}"
        sample = self._samples[hash(name)] if program.sample is None else program.sample
        self._samples[hash(name)] += 1
        if program.program_id is not None:
            return program.program_id, sample
        return (f"{name}/{sample}" if sample else name), sample


def import_programs(
    source: Source,
    name: str,
    files: Sequence[str],
    out: Path,
    privacy: Privacy,
    *,
    skip_invalid: bool,
) -> tuple[dict[str, int], Report]:
    """Write what ``source``, called ``name``, finds in the files as a data set; the rows written.

    The same files give the same tables. Rows that are not well-formed are reported, all of them.

    Raises:
        DataError: a file cannot be read, there is no program, or rows are invalid and
            ``skip_invalid`` is false; nothing is written.
        ConfigError: ``out`` cannot be written.
        ChimeraError: the disk is full.
    """
    report, tables = Report(), _Tables(privacy)
    with _writing(out), replaced_directory(out) as staging:
        with ExitStack() as stack:
            writers = {
                table: stack.enter_context(table_writer(staging, table)) for table in _TABLES
            }
            for found in source(files, report):
                _add(found, tables, report)
                if tables.is_full:
                    tables.flush(writers)
            tables.flush(writers)
        _refuse(report, tables.counts["programs"], name, files, skip_invalid=skip_invalid)
        counts = {table: tables.counts[table] for table in _TABLES}
        write_json(
            staging / provenance.FILE_NAME,
            {
                "schema_version": SCHEMA_VERSION,
                "tool_version": __version__,
                "status": "complete",
                "source": name,
                "files": [
                    {"name": path.name, "sha256": sha256(path)}
                    for path in map(Path, files)
                    if path.is_file()
                ],
                "counts": counts,
                "rows": report.as_json(),
                "privacy": privacy.facts() | {"replacements": privacy.replacements},
            },
        )
    return counts, report


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ChimeraError(
            f"{out} cannot be written ({error.strerror or error}): free space and import again."
        ) from error


def _add(found: Found, tables: _Tables, report: Report) -> None:
    try:
        program = ImportedProgram.model_validate(found.program)
        tables.add(program)
    except ValidationError as error:
        report.invalid.add(wrong_with(error), found.place, found.rows)
        return
    except ValueError as error:
        report.invalid.add(str(error), found.place, found.rows)
        return
    report.used += found.rows
    report.ignored_fields.update(list(program.model_extra or ()))
    for stage in program.stages:
        report.ignored_fields.update(f"stages.{name}" for name in stage.model_extra or ())


def _refuse(
    report: Report, programs: int, name: str, files: Sequence[str], *, skip_invalid: bool
) -> None:
    if report.invalid and not skip_invalid:
        advice = (
            "Repair them, or leave them out with --skip-invalid."
            if report.used
            else f"Are they of another source than --from {name}?"
        )
        raise DataError(
            f"{report.invalid.rows} of {report.read} rows are invalid, so nothing is written: "
            f"{'; '.join(report.invalid.sentences())}. {advice}"
        )
    if not programs:
        why = [*report.invalid.sentences(), *report.left_out.sentences()] or ["it is empty"]
        raise DataError(
            f"{', '.join(files)} holds no program that can be imported:"
            f" {'; '.join(why)}; see 'chimera-train collect import --help' for the formats."
        )


def _program_row(
    program: ImportedProgram, question_id: str, program_id: str, sample: int
) -> dict[str, Any]:
    score = program.outcome
    completed = [stage for stage in program.stages if stage.error is None]
    return {
        "program_id": program_id,
        "task": program.task,
        "question_id": question_id,
        "workflow": program.workflow,
        "model": program.model,
        "engine": program.engine,
        "sample": sample,
        "seed": program.seed,
        "started_at": program.started_at,
        "program_latency_ms": program.program_latency_ms,
        "n_stages": len(program.stages),
        "total_output_tokens": sum(stage.output_tokens for stage in completed),
        "score": score,
        "correct": None if score is None else score >= 1,
        "error": program.failure,
    }


def _question_row(program: ImportedProgram, question_id: str) -> dict[str, Any]:
    metadata = json.dumps(program.metadata, sort_keys=True) if program.metadata else None
    return {
        "question_id": question_id,
        "task": program.task,
        "text": program.question,
        "metadata": metadata,
    }

"""Collecting traces: every question, sample and model once, resumable after any interruption."""

import asyncio
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from chimera_train.collect import provenance
from chimera_train.collect.crew import run_jobs
from chimera_train.collect.data_set import (
    Counts,
    brief,
    completed_programs,
    is_complete,
    program_id,
    program_row,
    question_rows,
    stage_rows,
    write_data_set,
)
from chimera_train.collect.jobs import (
    CollectSettings,
    Job,
    identity,
    plan_jobs,
    require_variety,
    shard,
)
from chimera_train.collect.journal import Journal, open_journal
from chimera_train.collect.privacy import Privacy, open_privacy
from chimera_train.collect.runner import ProgramResult, Tool
from chimera_train.errors import ChimeraError, ConfigError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import Pool
from chimera_train.predict.tokens import TokenCounter
from chimera_train.tasks.model import Task
from chimera_train.traces.store import write_table
from chimera_train.workflows.model import Workflow

__all__ = ["CollectResult", "collect_traces"]

# Left on the disk for the tables, beside half of the journal, of which they are made.
_ROOM_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a data set holds after a run.

    Attributes:
        programs, stages: rows of its tables.
        failed: programs with an error; the next run tries them again.
        resumed: programs that were complete before this run.
        mean_score: of the graded programs, 0 to 1; None: none is.
        tokens_per_s: output tokens of this run, by the time its engines were ready; None when
            nothing was missing.
    """

    programs: int
    stages: int
    failed: int
    resumed: int
    mean_score: float | None
    tokens_per_s: float | None


def collect_traces(
    pool: Pool,
    task: Task,
    workflow: Workflow,
    out: Path,
    settings: CollectSettings,
    *,
    output: Output,
    engines: Sequence[str] | None = None,
    privacy: Privacy | None = None,
) -> CollectResult:
    """Run ``workflow`` on questions of ``task`` with every model, and write the trace tables.

    All engines, or those named in ``engines``, work at the same time; replicas of a model share
    its programs. Each finished program is stored in a journal, so that a run that was killed or
    interrupted goes on where it stopped; failed programs are tried again. Engines that were started
    here and are lost are started again, others are waited for. The tables and then
    ``provenance.json`` are written when the run ends, in whatever way. ``privacy`` decides what is
    stored of texts; by default it is what ``settings.texts`` asks for.

    Raises:
        ConfigError: before any engine is started: an unknown engine, no questions, a tool that the
            task lacks, samples that would be the same, or a directory that cannot be written, is
            in use, or holds programs of other settings.
        EngineError: an engine did not start, or died and did not come back; what was finished is
            kept.
        ChimeraError: every program failed, or the disk is full.
    """
    specs = pool.select(engines)
    drawn = task.questions(settings.limit, settings.seed)
    questions = shard(drawn, settings.shard)
    if not specs or not questions:
        part = f" in shard {settings.shard}" if settings.shard else ""
        raise ConfigError(
            f"The selection is empty: {len(specs)} engines, {len(questions)} questions of task"
            f" '{task.name}'{part}."
        )
    require_variety(workflow, settings)
    tools = _tools(workflow, task)
    models = list(dict.fromkeys(spec.model for spec in specs))
    jobs = plan_jobs(workflow, questions, models, settings)
    privacy = privacy or open_privacy(out, no_text=not settings.texts)
    decisive = identity(task, workflow, drawn, models, settings) | privacy.decisive()
    rows = question_rows(questions, privacy)
    with open_journal(out, decisive, program_id, brief) as journal:
        completed = completed_programs(journal.entries)
        missing = [job for job in jobs if job.program_id not in completed]
        if not missing and is_complete(out):
            output.info(f"{out} is complete: nothing to do.")
            return _result(Counts.of(journal.entries), len(completed), tokens_per_s=None)
        tokens_per_s: float | None = None
        try:
            if missing:
                with running_pool(pool, log_dir=out / "logs", output=output, only=engines) as ready:
                    # Not before: the engines download the tokenizers of models of the hub.
                    keeper = _Keeper(out, journal, task, workflow, settings, models, privacy)
                    write_table(out, "questions", rows)
                    journal.begin_run(provenance.describe_run(ready))
                    tokens_per_s = _run(keeper, ready, jobs, missing, tools, output)
        finally:
            journal.seal()
            counts = Counts.of(journal.entries)
            if counts.programs:
                write_table(out, "questions", rows)
                wanted = [job.program_id for job in jobs]
                write_data_set(out, decisive, journal, wanted, len(questions))
                _say_what_is_missing(counts, len(jobs), output)
        if counts.failed == len(jobs):
            raise ChimeraError(f"Every program failed; the first error: {counts.first_error}.")
        return _result(counts, len(completed), tokens_per_s)


def _result(counts: Counts, resumed: int, tokens_per_s: float | None) -> CollectResult:
    return CollectResult(
        counts.programs, counts.stages, counts.failed, resumed, counts.mean_score, tokens_per_s
    )


def _tools(workflow: Workflow, task: Task) -> dict[str, Tool]:
    """What the tool stages of ``workflow`` run.

    Raises:
        ConfigError: the task does not have it.
    """
    tools: dict[str, Tool] = {}
    for stage in workflow.stages:
        if stage.tool is None:
            continue
        tool = getattr(task, stage.tool, None)
        if tool is None:
            raise ConfigError(
                f"Task '{task.name}' has no {stage.tool.replace('_', ' ')}, which stage"
                f" '{stage.id}' of workflow '{workflow.name}' runs: use a task of programs, or a"
                " workflow without that tool."
            )
        tools[stage.tool] = tool
    return tools


class _Keeper:
    """Grades and stores programs."""

    def __init__(
        self,
        out: Path,
        journal: Journal,
        task: Task,
        workflow: Workflow,
        settings: CollectSettings,
        models: Sequence[str],
        privacy: Privacy,
    ) -> None:
        self.settings = settings
        self.workflow = workflow
        self._out = out
        self._journal = journal
        self._task = task
        self._privacy = privacy
        paths = {model: provenance.tokenizer_path(model) for model in models}
        self._counters = {model: TokenCounter(path) for model, path in paths.items() if path}

    def store(self, job: Job, result: ProgramResult, *, engine: str, attempts: int) -> None:
        """Grade one program and store it.

        Raises:
            ChimeraError: the disk is full.
        """
        score = None
        if result.error is None:
            score = self._task.grade(job.question, result.answer)
        program = program_row(
            job,
            result,
            workflow=self.workflow.name,
            engine=engine,
            seed=self.settings.seed,
            score=score,
            attempts=attempts,
        )
        counter = self._counters.get(job.model)
        stages = stage_rows(result, counter, self._privacy)
        self._require_room()
        self._journal.append({"program": self._privacy.program(program), "stages": stages})

    def _require_room(self) -> None:
        free = shutil.disk_usage(self._out).free
        if free < _ROOM_BYTES + self._journal.size_bytes / 2:
            raise ChimeraError(
                f"The disk of {self._out} is almost full ({free >> 20} MiB free), and the tables"
                " have to be written to it: free space and run the same command again."
            )


class _Board:
    """The progress line of one model."""

    def __init__(self, progress: Progress, model: str, total: int, completed: int) -> None:
        self._progress = progress
        self._line = progress.add_task(model, total=total, completed=completed, note="")
        self._start = time.monotonic()
        self._failed = 0
        self.output_tokens = 0

    def add(self, result: ProgramResult) -> None:
        self.output_tokens += result.output_tokens
        self._failed += result.error is not None
        rate = self.output_tokens / (time.monotonic() - self._start)
        note = f"{rate:.0f} tokens/s" + (f", {self._failed} failed" if self._failed else "")
        self._progress.update(self._line, advance=1, note=note)


def _run(
    keeper: _Keeper,
    engines: Sequence[RunningEngine],
    jobs: Sequence[Job],
    missing: Sequence[Job],
    tools: Mapping[str, Tool],
    output: Output,
) -> float:
    """Run the missing programs; output tokens per second of all engines together."""
    start = time.monotonic()
    with output.progress() as progress:
        boards = {}
        for model in dict.fromkeys(job.model for job in missing):
            total = sum(job.model == model for job in jobs)
            left = sum(job.model == model for job in missing)
            boards[model] = _Board(progress, model, total, total - left)
        asyncio.run(
            run_jobs(
                missing,
                engines,
                keeper.workflow,
                keeper.settings,
                tools=tools,
                store=keeper.store,
                stored=lambda job, result: boards[job.model].add(result),
                output=output,
            )
        )
    tokens = sum(board.output_tokens for board in boards.values())
    return tokens / (time.monotonic() - start)


def _say_what_is_missing(counts: Counts, wanted: int, output: Output) -> None:
    completed = counts.programs - counts.failed
    if completed < wanted:
        failures = f" (first error: {counts.first_error})" if counts.failed else ""
        output.warn(
            f"{completed} of {wanted} programs completed, {counts.failed} failed{failures}: the"
            " same command goes on from here"
        )

"""Collecting traces: every question, sample and model once, resumable after any interruption."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from chimera_train.collect import provenance
from chimera_train.collect.alive import require_alive
from chimera_train.collect.data_set import (
    Counts,
    completed_programs,
    is_complete,
    program_id,
    program_row,
    stage_rows,
    write_data_set,
)
from chimera_train.collect.jobs import CollectSettings, Job, identity, plan_jobs
from chimera_train.collect.journal import Journal, open_journal
from chimera_train.collect.runner import Endpoint, ProgramResult, open_endpoint, run_program
from chimera_train.errors import ChimeraError, ConfigError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import Pool
from chimera_train.predict.tokens import TokenCounter
from chimera_train.tasks.model import Task
from chimera_train.workflows.model import Workflow

__all__ = ["CollectResult", "collect_traces"]

# A dying engine answers with errors for a moment; also keeps a failing one from being hammered.
_PAUSE_AFTER_FAILURE_S = 0.5


@dataclass(frozen=True, slots=True)
class CollectResult:
    """What a data set holds after a run.

    Attributes:
        programs, stages: rows of its tables.
        failed: programs with an error; the next run tries them again.
        resumed: programs that were complete before this run.
        tokens_per_s: output tokens of this run, by the time its engines were ready; None when
            nothing was missing.
    """

    programs: int
    stages: int
    failed: int
    resumed: int
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
) -> CollectResult:
    """Run ``workflow`` on questions of ``task`` with every model, and write the trace tables.

    All engines, or those named in ``engines``, work at the same time; replicas of a model share
    its programs. Each finished program is stored in a journal before another takes its place, so
    that a run that was killed or interrupted goes on where it stopped; failed programs are tried
    again. The tables and then ``provenance.json`` are written when the run ends, in whatever way.

    Raises:
        ConfigError: before any engine is started: an unknown engine, no questions, or a directory
            that cannot be written, is in use, or holds programs of other settings.
        EngineError: an engine did not start, or died; what was finished is kept.
        ChimeraError: every program failed.
    """
    specs = pool.select(engines)
    questions = task.questions(settings.limit, settings.seed)
    if not specs or not questions:
        raise ConfigError(
            f"The selection is empty: {len(specs)} engines, {len(questions)} questions of task"
            f" '{task.name}'."
        )
    models = list(dict.fromkeys(spec.model for spec in specs))
    jobs = plan_jobs(workflow, questions, models, settings)
    decisive = identity(task, workflow, questions, models, settings)
    with open_journal(out, decisive, program_id) as journal:
        completed = completed_programs(journal)
        missing = [job for job in jobs if job.program_id not in completed]
        if not missing and is_complete(out):
            output.info(f"{out} is complete: nothing to do.")
            return _result(Counts.of(journal), len(completed), tokens_per_s=None)
        tokens_per_s: float | None = None
        try:
            if missing:
                collector = _Collector(journal, task, workflow, settings, models)
                with running_pool(pool, log_dir=out / "logs", output=output, only=engines) as ready:
                    journal.begin_run(provenance.describe_run(ready))
                    tokens_per_s = _run(collector, ready, jobs, missing, output)
        finally:
            journal.seal()
            counts = Counts.of(journal)
            if counts.programs:
                write_data_set(out, journal, jobs, questions)
                _say_what_is_missing(counts, len(jobs), output)
        if counts.failed == len(jobs):
            raise ChimeraError(f"Every program failed; the first error: {counts.first_error}.")
        return _result(counts, len(completed), tokens_per_s)


def _result(counts: Counts, resumed: int, tokens_per_s: float | None) -> CollectResult:
    return CollectResult(counts.programs, counts.stages, counts.failed, resumed, tokens_per_s)


class _Collector:
    """Runs programs and stores them."""

    def __init__(
        self,
        journal: Journal,
        task: Task,
        workflow: Workflow,
        settings: CollectSettings,
        models: Sequence[str],
    ) -> None:
        self.settings = settings
        self._journal = journal
        self._task = task
        self._workflow = workflow
        paths = {model: provenance.tokenizer_path(model) for model in models}
        self._counters = {model: TokenCounter(path) for model, path in paths.items() if path}

    async def collect(self, job: Job, engine: RunningEngine, endpoint: Endpoint) -> ProgramResult:
        """Run one program and store it.

        Raises:
            EngineError: the engine has died; the program is not stored.
        """
        result = await run_program(
            endpoint,
            self._workflow,
            job.question,
            program_id=job.program_id,
            sample=job.sample,
            seed=self.settings.seed,
            temperature=self.settings.temperature,
        )
        if result.error is not None:
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            await asyncio.to_thread(require_alive, engine)
        # Grading may take its time and the disk too: neither may hold up the other streams.
        await asyncio.to_thread(self._store, job, engine.spec.name, result)
        return result

    def _store(self, job: Job, engine: str, result: ProgramResult) -> None:
        score = None
        if result.error is None:
            score = self._task.grade(job.question, result.answer)
        program = program_row(
            job,
            result,
            workflow=self._workflow.name,
            engine=engine,
            seed=self.settings.seed,
            score=score,
        )
        stages = stage_rows(
            result,
            self._counters.get(job.model),
            temperature=self.settings.temperature,
            texts=self.settings.texts,
        )
        self._journal.append({"program": program, "stages": stages})


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
    collector: _Collector,
    engines: Sequence[RunningEngine],
    jobs: Sequence[Job],
    missing: Sequence[Job],
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
        try:
            asyncio.run(_run_all(collector, engines, missing, boards))
        except ExceptionGroup as group:
            raise _first(group) from group
    tokens = sum(board.output_tokens for board in boards.values())
    return tokens / (time.monotonic() - start)


async def _run_all(
    collector: _Collector,
    engines: Sequence[RunningEngine],
    missing: Sequence[Job],
    boards: Mapping[str, _Board],
) -> None:
    # One iterator for each model, from which the workers of its engines take turns.
    queues = {model: iter([job for job in missing if job.model == model]) for model in boards}

    async def work(jobs: Iterator[Job], engine: RunningEngine, endpoint: Endpoint) -> None:
        for job in jobs:
            boards[job.model].add(await collector.collect(job, engine, endpoint))

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        for engine in engines:
            if engine.spec.model not in queues:
                continue
            endpoint = await stack.enter_async_context(
                open_endpoint(engine.base_url, engine.served_model)
            )
            for _ in range(collector.settings.concurrency):
                group.create_task(work(queues[engine.spec.model], engine, endpoint))


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The failure that made the others stop."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def _say_what_is_missing(counts: Counts, wanted: int, output: Output) -> None:
    completed = counts.programs - counts.failed
    if completed < wanted:
        failures = f" (first error: {counts.first_error})" if counts.failed else ""
        output.warn(
            f"{completed} of {wanted} programs completed, {counts.failed} failed{failures}: the"
            " same command goes on from here"
        )

"""Running programs on many engines: who takes which, what is tried again, and when it is stored."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Protocol

from chimera_train.collect.gate import Gate
from chimera_train.collect.jobs import CollectSettings, Job
from chimera_train.collect.request import open_endpoint
from chimera_train.collect.runner import ProgramResult, Tool, run_program
from chimera_train.collect.station import Station
from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine
from chimera_train.workflows.model import Workflow

__all__ = ["JobQueue", "Store", "run_jobs"]

# A program may be what kills its engine.
_MAX_ATTEMPTS = 4
# A dying engine answers with errors for a moment; also keeps a failing one from being hammered.
_PAUSE_AFTER_FAILURE_S = 0.5
# Grading may wait for processes; they share this machine's cores with what else runs here.
_GRADERS = 8


class Store(Protocol):
    """Takes a finished program; blocking, called from threads."""

    def __call__(self, job: Job, result: ProgramResult, *, engine: str, attempts: int) -> None: ...


class JobQueue:
    """The programs of one model, of which its engines take turns; for one event loop.

    A program that failed on one engine is run by each of the others before it counts as failed:
    an engine that fails at once would else take most of them.
    """

    def __init__(self, jobs: Sequence[Job], engines: Collection[str]) -> None:
        self.waiting = deque(jobs)
        self._engines = set(engines)
        self._failed_on: dict[str, set[str]] = {}
        self._in_flight = 0
        self._changed = asyncio.Condition()

    async def take(self, engine: str) -> Job | None:
        """The next program; waits while one in flight may still be given back. None: all done."""
        async with self._changed:
            while True:
                for job in self.waiting:
                    if engine not in self._failed_on.get(job.program_id, ()):
                        self.waiting.remove(job)
                        self._in_flight += 1
                        return job
                if not self._in_flight and not self.waiting:
                    return None
                await self._changed.wait()

    async def done(self) -> None:
        """A program that was taken is finished."""
        async with self._changed:
            self._in_flight -= 1
            if not self._in_flight:
                self._changed.notify_all()

    async def failed(self, job: Job, engine: str) -> bool:
        """``job`` failed on ``engine``; whether another one runs it. If not it is in flight yet."""
        async with self._changed:
            engines = self._failed_on.setdefault(job.program_id, set())
            engines.add(engine)
            if self._engines <= engines:
                return False
            self.waiting.append(job)
            self._in_flight -= 1
            self._changed.notify_all()
            return True

    async def lost(self, job: Job, engine: str) -> None:
        """``engine`` is gone, and with it ``job``, which others have to run."""
        async with self._changed:
            self._engines.discard(engine)
            self.waiting.appendleft(job)
            self._in_flight -= 1
            for other in self.waiting:
                # Where it failed already is where it is run now, to have its failure.
                if self._engines <= self._failed_on.get(other.program_id, set()):
                    self._failed_on.pop(other.program_id, None)
            self._changed.notify_all()


async def run_jobs(
    jobs: Sequence[Job],
    engines: Sequence[RunningEngine],
    workflow: Workflow,
    settings: CollectSettings,
    *,
    tools: Mapping[str, Tool],
    store: Store,
    stored: Callable[[Job, ProgramResult], None],
    output: Output,
) -> None:
    """Run every program of ``jobs`` on an engine of its model.

    Engines that are lost are had back (``Station``), and programs that were in flight there begin
    anew. An engine that does not come back leaves its programs to the others of its model. Results
    are stored while the next programs run already, but never many behind.

    Args:
        jobs: the programs.
        engines: where they may run.
        workflow: what a program is.
        settings: how many at a time, and how requests are sampled.
        tools: every tool that the workflow names.
        store: keeps a finished program.
        stored: told of every program once it is kept, in the event loop.
        output: where losses are told.

    Raises:
        EngineError: engines are gone, and with them the last ones of a model.
        ChimeraError: what ``store`` raised.
    """
    with ThreadPoolExecutor(_GRADERS, thread_name_prefix="grade") as graders:
        crew = _Crew(jobs, engines, workflow, settings, tools, store, stored, graders)
        try:
            await crew.run(engines, output)
        except ExceptionGroup as group:
            raise _first(group) from group
    for queue in crew.queues.values():
        if queue.waiting and crew.lost:
            raise crew.lost[0]
    for error in crew.lost:
        output.warn(f"{error} Its programs were run by other engines of its model.")


class _Crew:
    """The workers of all engines and what they share."""

    def __init__(
        self,
        jobs: Sequence[Job],
        engines: Sequence[RunningEngine],
        workflow: Workflow,
        settings: CollectSettings,
        tools: Mapping[str, Tool],
        store: Store,
        stored: Callable[[Job, ProgramResult], None],
        graders: ThreadPoolExecutor,
    ) -> None:
        self.queues = {
            model: JobQueue(
                [job for job in jobs if job.model == model],
                [engine.spec.name for engine in engines if engine.spec.model == model],
            )
            for model in dict.fromkeys(job.model for job in jobs)
        }
        self.lost: list[EngineError] = []
        self._workflow = workflow
        self._settings = settings
        self._tools = tools
        self._store = store
        self._stored = stored
        self._graders = graders

    async def run(self, engines: Sequence[RunningEngine], output: Output) -> None:
        """Run all; errors of the workers come as a group."""
        concurrency = self._settings.concurrency
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            # Backs up to the engines, rather than into memory, where grading is too slow.
            room = asyncio.Semaphore(2 * concurrency * len(engines))
            for engine in engines:
                if engine.spec.model not in self.queues:
                    continue
                endpoint = await stack.enter_async_context(
                    open_endpoint(
                        engine.base_url,
                        engine.served_model,
                        Gate(concurrency),
                        api_key=engine.api_key,
                    )
                )
                station = Station(engine, endpoint, output)
                for _ in range(concurrency):
                    group.create_task(self._work(station, group, room))

    async def _work(
        self, station: Station, group: asyncio.TaskGroup, room: asyncio.Semaphore
    ) -> None:
        queue = self.queues[station.engine.spec.model]
        engine = station.engine.spec.name
        while (job := await queue.take(engine)) is not None:
            try:
                result, attempts = await self._run_program(job, station)
            except EngineError as error:
                if error not in self.lost:
                    self.lost.append(error)
                await queue.lost(job, engine)
                return
            if result.error is not None and await queue.failed(job, engine):
                continue
            await room.acquire()
            keeping = group.create_task(self._keep(job, result, engine, attempts))
            keeping.add_done_callback(lambda _: room.release())
            await queue.done()

    async def _run_program(self, job: Job, station: Station) -> tuple[ProgramResult, int]:
        """Run one program to its end, from its first stage again where the engine was lost.

        Raises:
            EngineError: the engine does not come back.
        """
        attempt = 1
        while True:
            generation = station.generation
            result = await run_program(
                station.endpoint,
                self._workflow,
                job.question,
                self._settings.sampling,
                program_id=job.program_id,
                sample=job.sample,
                tools=self._tools,
            )
            if result.error is None:
                station.served()
                return result, attempt
            await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)
            is_intact = await station.is_intact(generation)
            if (is_intact and not result.is_lost) or attempt == _MAX_ATTEMPTS:
                return result, attempt
            attempt += 1

    async def _keep(self, job: Job, result: ProgramResult, engine: str, attempts: int) -> None:
        # Grading may take its time and the disk too: neither may hold up the streams.
        await asyncio.get_running_loop().run_in_executor(
            self._graders, lambda: self._store(job, result, engine=engine, attempts=attempts)
        )
        self._stored(job, result)


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The failure that made the others stop."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first

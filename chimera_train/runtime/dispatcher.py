"""The scheduler made awaitable: a request waits here for its slot at an engine.

All calls come from one event loop, so the scheduler needs no lock. A slot is a context: however it
is left, the scheduler learns what became of the request, and the next one in line is let through.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from chimera_train.errors import EngineError
from chimera_train.scheduling.model import Decision, Request
from chimera_train.scheduling.scheduler import Scheduler

__all__ = ["Dispatcher", "Slot"]


@dataclass(slots=True)
class Slot:
    """A request's place at the engine that was chosen for it.

    Attributes:
        admitted_ms: when the decision was made.
        granted_ms: when the engine had room.
        completed: set it when the response is complete; otherwise the request counts as failed.
    """

    request_id: int
    decision: Decision
    admitted_ms: float
    granted_ms: float
    completed: bool = False


class Dispatcher:
    """Admits requests and grants them slots in the scheduler's order.

    Args:
        scheduler: nobody else may call it.
        engines: names of its engines.
        clock: the present in ms.
    """

    def __init__(
        self, scheduler: Scheduler, engines: list[str], clock: Callable[[], float]
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._clock = clock
        # The requests that the scheduler knows; a future is done once its slot is granted.
        self._grants: dict[int, asyncio.Future[None]] = {}
        self._up = [True] * len(engines)
        self.needs_confidence = scheduler.needs_confidence
        self.needs_lengths = scheduler.needs_lengths

    @asynccontextmanager
    async def slot(self, request: Request) -> AsyncIterator[Slot]:
        """Admit ``request`` and wait until its engine has room for it.

        Raises:
            EngineError: no engine is up, or the chosen one went down while the request waited.
        """
        admitted_ms = self._clock()
        decision = self._scheduler.admit(request, admitted_ms)
        grant = asyncio.get_running_loop().create_future()
        self._grants[request.request_id] = grant
        slot = Slot(request.request_id, decision, admitted_ms, admitted_ms)
        try:
            self._grant_next(decision.engine)
            await grant
            slot.granted_ms = self._clock()
            yield slot
        finally:
            if self._grants.pop(request.request_id, None) is not None:
                if slot.completed:
                    self._scheduler.on_complete(request.request_id)
                else:
                    self._scheduler.on_fail(request.request_id)
                self._grant_next(decision.engine)

    def on_tokens(self, slot: Slot, n: int) -> None:
        """``n`` more output tokens came for the request in ``slot``."""
        self._scheduler.on_tokens(slot.request_id, n)

    def end_program(self, program_id: str) -> None:
        """A program has ended."""
        self._scheduler.on_program_end(program_id)

    def engine_of(self, program_id: str) -> int | None:
        """The engine that a program keeps; None while it has none."""
        return self._scheduler.engine_of(program_id)

    def engine_down(self, engine: int) -> None:
        """Stop using an engine; the requests that wait for it are sent back to be admitted."""
        if not self._up[engine]:
            return
        self._up[engine] = False
        for request_id in self._scheduler.on_engine_down(engine):
            grant = self._grants.pop(request_id)
            if not grant.done():
                grant.set_exception(EngineError(f"Engine '{self._engines[engine]}' went down."))

    def engine_up(self, engine: int) -> None:
        """Use an engine again."""
        if not self._up[engine]:
            self._up[engine] = True
            self._scheduler.on_engine_up(engine)

    def is_up(self, engine: int) -> bool:
        """Whether requests may be sent to the engine."""
        return self._up[engine]

    def engine_load_ms(self, engine: int) -> float:
        """The engine's load L: ms that the predicted tokens in flight will take."""
        return float(self._scheduler.load_ms()[engine])

    def outstanding(self, engine: int) -> int:
        """Requests at the engine."""
        return self._scheduler.outstanding(engine)

    def queued(self, engine: int) -> int:
        """Requests waiting here for the engine."""
        return self._scheduler.queued(engine)

    def warm_up(self) -> None:
        """Run one request through the idle scheduler, which compiles all that may come."""
        n = len(self._engines)
        confidence = np.ones(n) if self.needs_confidence else None
        engine = self._scheduler.admit(Request(-1, "", np.ones(n), confidence), 0.0).engine
        self._scheduler.pop(engine, 0.0)
        self._scheduler.on_tokens(-1, 1)
        self._scheduler.on_engine_down(engine)
        self._scheduler.on_engine_up(engine)
        self._scheduler.on_fail(-1)
        self._scheduler.on_program_end("")

    def _grant_next(self, engine: int) -> None:
        """Let requests through while the engine has room."""
        while (request_id := self._scheduler.pop(engine, self._clock())) is not None:
            grant = self._grants[request_id]
            # One that was cancelled in this very moment gives its slot back when it wakes up.
            if not grant.done():
                grant.set_result(None)

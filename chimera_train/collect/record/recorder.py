"""The life of a recorded request.

1  read      for which program, stage and question, with what text        (relay.api)
2  choose    the engine of its program, or the least busy one that serves the model
3  forward   stream from the engine, relay, put the answer together           (relay)
4  store     what was sent and what came, on the disk
5  finish    the client has the end of its answer
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chimera_train.collect.journal import Journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.record.kept import kept
from chimera_train.collect.record.pieces import Outcome, end_piece, outcome_piece
from chimera_train.collect.record.programs import Program, Programs
from chimera_train.collect.record.settings import RecordSettings
from chimera_train.collect.record.visit import Visit
from chimera_train.errors import ChimeraError, EngineError
from chimera_train.predict.tokens import TokenCounter
from chimera_train.relay.answer import Answer, pass_on
from chimera_train.relay.api import ApiError, Call, no_such_model, upstream_body
from chimera_train.relay.names import engines_called
from chimera_train.relay.reply import Reply
from chimera_train.relay.upstream import (
    Headers,
    open_clients,
    open_upstream,
    without_credentials,
)

__all__ = ["RecordedEngine", "Recorder", "wall_clock"]

_log = logging.getLogger(__name__)

_CANCELLED = "cancelled: the client went away, or the recording stopped"


@dataclass(slots=True)
class RecordedEngine:
    """An engine that requests are forwarded to.

    Attributes:
        name: in the pool.
        model: of the pool.
        base_url: ends in ``/v1``.
        served_model: the model name that the engine answers to.
        api_key: sent to it instead of the client's own; None: the client's is passed on.
        outstanding: requests that it has not answered yet.
        avoid_until_ms: it could not be reached, and is passed over until then.
    """

    name: str
    model: str
    base_url: str
    served_model: str
    api_key: str | None = field(default=None, repr=False)
    outstanding: int = 0
    avoid_until_ms: float = 0.0


class Recorder:
    """Forwards requests to the engines of a pool, and stores what they asked and were answered.

    Args:
        engines: of the pool.
        journal: takes the pieces; what it holds already is gone on with.
        counters: of the tokens of a text, by model; a model without one has unknown counts.
        settings: limits and timings.
        privacy: decides what may be stored.
        clock: the present in ms since 1970; never goes back.

    Attributes:
        lost: finished requests that could not be stored.
    """

    def __init__(
        self,
        engines: Sequence[RecordedEngine],
        journal: Journal,
        counters: Mapping[str, TokenCounter],
        settings: RecordSettings,
        privacy: Privacy,
        clock: Callable[[], float],
    ) -> None:
        self.engines = list(engines)
        self.settings = settings
        self.clock = clock
        self.lost = 0
        self.programs = Programs(settings.program_ttl_s * 1000)
        self.programs.restore(journal.entries.briefs.values())
        self._journal = journal
        self._counters = counters
        self._privacy = privacy
        self._clients = open_clients(
            [(engine.base_url, engine.api_key) for engine in engines],
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ready to serve; closes all connections in the end."""
        try:
            yield
        finally:
            for client in self._clients:
                await client.aclose()

    async def serve(self, call: Call, headers: Headers, reply: Reply, arrived_ms: float) -> None:
        """Answer one request, and store it before its answer ends.

        Raises:
            ApiError: it could not be answered, or not to the end.
        """
        serving = self._serving(call.model)
        name = call.program_id or f"request-{uuid.uuid4().hex}"
        program, place = self.programs.enter(name, arrived_ms)
        engine = self._choose(program, serving)
        if call.program_id is None:
            program.ended = True
            reply.headers = [(b"x-program-id", name.encode())]
        visit = Visit(call, program, place, engine.model, engine.name, self.clock())
        engine.outstanding += 1
        try:
            answer = visit.answer = await self._ask(visit, engine, headers, reply)
            visit.error = answer.error
        except asyncio.CancelledError:
            # A client may leave as soon as it has all, which is before the connection has ended.
            visit.error = None if visit.is_complete else _CANCELLED
            raise
        except EngineError as error:
            visit.error = str(error)
            engine.avoid_until_ms = self.clock() + self.settings.avoid_s * 1000
            raise ApiError(502, str(error), kind="server_error") from error
        except Exception as error:
            visit.error = str(error)
            raise
        finally:
            engine.outstanding -= 1
            self.programs.leave(program, self.clock())
            await asyncio.shield(asyncio.to_thread(self._store, visit, self.clock()))
        await answer.finish(reply)

    async def end(self, program: Program) -> None:
        """No further request belongs to ``program``.

        Raises:
            ApiError: it cannot be stored.
        """
        await self._append(end_piece(program.program_id, program.name, self.clock()))
        program.ended = True

    async def settle(self, program: Program, outcome: Outcome) -> None:
        """Store how ``program`` went, which ends it.

        Raises:
            ApiError: it cannot be stored.
        """
        now_ms = self.clock()
        await self._append(outcome_piece(program.program_id, program.name, outcome, now_ms))
        program.ended = True

    def is_avoided(self, engine: RecordedEngine) -> bool:
        """Whether an engine could not be reached a moment ago."""
        return self.clock() < engine.avoid_until_ms

    def _serving(self, model: str | None) -> list[int]:
        """The engines that a request names by their own name or their model's."""
        if model is None:
            raise ApiError(400, "You must provide a 'model' parameter.", param="model")
        models = [engine.model for engine in self.engines]
        if found := engines_called(model, [engine.name for engine in self.engines], models):
            return found
        raise no_such_model(model, f"this pool serves {', '.join(dict.fromkeys(models))}")

    def _choose(self, program: Program, serving: Sequence[int]) -> RecordedEngine:
        """The engine that has the program's context, or the least busy one."""
        model = self.engines[serving[0]].model
        reachable = [i for i in serving if not self.is_avoided(self.engines[i])] or serving
        chosen = program.engines.get(model)
        if chosen is None or chosen not in reachable:
            chosen = min(reachable, key=lambda i: self.engines[i].outstanding)
            program.engines[model] = chosen
        return self.engines[chosen]

    async def _ask(
        self, visit: Visit, engine: RecordedEngine, headers: Headers, reply: Reply
    ) -> Answer:
        call = visit.call
        client = self._clients[self.engines.index(engine)]
        if engine.api_key is not None:
            headers = without_credentials(headers)
        body = upstream_body(call, engine.served_model, None)
        async with open_upstream(client, call.kind.path, headers, body) as upstream:
            return await pass_on(
                call,
                upstream,
                reply,
                visit.observer,
                self.clock,
                assembler=visit.assembler,
            )

    def _store(self, visit: Visit, end_ms: float) -> None:
        try:
            piece = visit.piece(self._counters.get(visit.model), end_ms)
            self._journal.append(kept(piece, self._privacy))
        except ChimeraError as error:
            # The client has its answer all the same: recording must not stop what is recorded.
            self.lost += 1
            _log.error("A finished request was not stored: %s", error)

    async def _append(self, piece: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._journal.append, piece)
        except ChimeraError as error:
            raise ApiError(500, str(error), kind="server_error") from error


def wall_clock() -> Callable[[], float]:
    """A clock in ms since 1970 that does not follow when the machine's is set."""
    start_ms = (time.time() - time.monotonic()) * 1000
    return lambda: start_ms + time.monotonic() * 1000

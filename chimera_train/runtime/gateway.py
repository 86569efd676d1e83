"""The life of a request, from its arrival to its last token.

1  read        who is asking, for which program and stage, with what text        (api.py)
2  refuse      when too many requests wait already
3  predict     remaining tokens and confidence, off the event loop       (predictions.py)
4  decide      engine and place in its queue                                 (scheduling)
5  wait        until the engine has room                                  (dispatcher.py)
6  forward     stream from the engine, relay, count tokens                        (relay)
7  try again   from 3, when the engine went away and nothing was sent yet
8  log         what was predicted beside what happened              (trip.py, decisions.py)
"""

import asyncio
import itertools
import json
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import numpy as np

from chimera_train.errors import EngineError
from chimera_train.history import History
from chimera_train.relay.answer import pass_on
from chimera_train.relay.api import ApiError, Call, no_such_model, upstream_body
from chimera_train.relay.events import StreamObserver
from chimera_train.relay.names import engines_called
from chimera_train.relay.reply import Reply
from chimera_train.relay.upstream import Headers, Upstream, open_upstream, without_credentials
from chimera_train.runtime.decisions import DecisionLog
from chimera_train.runtime.dispatcher import Dispatcher, Slot
from chimera_train.runtime.engines import Endpoint, Engines
from chimera_train.runtime.metrics import GatewayMetrics
from chimera_train.runtime.predictions import Batcher, Prediction, Predictors, Query, predict_batch
from chimera_train.runtime.programs import ProgramTable
from chimera_train.runtime.refusals import draining, engine_unavailable, queue_full
from chimera_train.runtime.settings import GatewaySettings
from chimera_train.runtime.trip import Trip
from chimera_train.scheduling.model import Request
from chimera_train.scheduling.scheduler import Scheduler

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)

_SWEEP_S = 1.0


class Gateway:
    """Answers generating requests with the engines of a pool.

    Args:
        model: the name of the virtual model, which leaves the choice of an engine to the gateway;
            the name of an engine or of its model pins a request to it.
        endpoints: in the order of the scheduler's engines.
        scheduler: decides; the gateway is its only caller.
        predictors: what it decides by.
        settings: limits and timings.
        decisions: where decisions are logged, if anywhere.
        clock: the present in ms; only differences count.

    Attributes:
        draining: see ``drain``.
    """

    def __init__(
        self,
        model: str,
        endpoints: Sequence[Endpoint],
        scheduler: Scheduler,
        predictors: Predictors,
        settings: GatewaySettings,
        decisions: DecisionLog | None,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self.settings = settings
        self.clock = clock
        self.engine_names = [endpoint.name for endpoint in endpoints]
        self.engine_models = list(predictors.models)
        self.dispatcher = Dispatcher(scheduler, self.engine_names, clock)
        self.programs = ProgramTable(
            settings.max_programs, settings.program_ttl_s * 1000, self.dispatcher.end_program
        )
        self._engines = Engines(endpoints, settings, self.dispatcher, clock)
        self.metrics = GatewayMetrics(
            self.dispatcher, self.programs, self.engine_names, self._engines.breaker_state
        )
        self._everything = range(len(endpoints))
        self._decisions = decisions
        self._predict = Batcher(partial(predict_batch, predictors), settings.max_batch)
        self._request_ids = itertools.count()
        self._in_flight = 0
        self.draining = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ready to serve: everything is compiled, and every engine was asked whether it is up."""
        self.dispatcher.warm_up()
        await self._predict(
            Query("", "", "", "warm up", 0, History(), self._everything, True, True)
        )
        await self._engines.find_out()
        background = [
            *(asyncio.create_task(self._engines.keep_probing(e)) for e in self._everything),
            asyncio.create_task(self._forget_old_programs()),
        ]
        try:
            yield
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._engines.close()
            self._predict.close()

    def drain(self) -> None:
        """Answer new requests 503, and those that run to the end."""
        self.draining = True

    async def serve(self, call: Call, headers: Headers, reply: Reply, arrived_ms: float) -> None:
        """Answer one request.

        Args:
            call: the request.
            headers: its end-to-end headers; the engine gets them without the client's credentials.
            reply: takes the response.
            arrived_ms: when the request had been received.

        Raises:
            ApiError: it could not be answered, or not to the end.
        """
        pinned_to = self._pinned_to(call.model)
        if self.draining:
            raise draining()
        self._refuse_if_full()
        program_id = call.program_id or f"request-{uuid.uuid4().hex}"
        program = self.programs.enter(program_id, call.workflow, self.clock())
        trip = Trip(call, program, pinned_to, datetime.now(UTC), arrived_ms)
        self._in_flight += 1
        try:
            await self._answer(trip, without_credentials(headers), reply)
        except asyncio.CancelledError:
            trip.error = "cancelled: the client went away, or the gateway stopped"
            raise
        except Exception as error:
            trip.error = str(error)
            raise
        finally:
            self._in_flight -= 1
            now_ms = self.clock()
            self.programs.leave(program, trip.history(), now_ms)
            if call.program_id is None:
                self.programs.end(program)
            self._note(trip, now_ms)

    async def _answer(self, trip: Trip, headers: Headers, reply: Reply) -> None:
        while True:
            prediction = trip.prediction = await self._predict_for(trip)
            tokens = prediction.remaining_tokens
            request = Request(
                request_id=next(self._request_ids),
                program_id=trip.program.program_id,
                remaining_tokens=np.zeros(len(self._everything)) if tokens is None else tokens,
                confidence=prediction.confidence,
                overrun_tokens=prediction.overrun_tokens,
                pinned_to=trip.pinned_to,
            )
            try:
                async with self.dispatcher.slot(request) as slot:
                    trip.slot = slot
                    if trip.overhead_ms is None:
                        trip.overhead_ms = slot.admitted_ms - trip.arrived_ms
                    await self._forward(trip, slot, headers, reply)
                return
            except EngineError as error:
                may_take = trip.pinned_to or self._everything
                if not any(map(self.dispatcher.is_up, may_take)):
                    wait_s = self._engines.wait_s(may_take)
                    raise engine_unavailable(503, str(error), wait_s) from error
                if reply.status is not None or trip.fallbacks == self.settings.redispatches:
                    raise engine_unavailable(502, str(error), wait_s=1) from error
                trip.fallbacks += 1

    async def _predict_for(self, trip: Trip) -> Prediction:
        call, program, pinned_to = trip.call, trip.program, trip.pinned_to
        may_take = self._everything if pinned_to is None else pinned_to
        # Engines that serve one model are equally likely to be right.
        routed = self.dispatcher.needs_confidence and pinned_to is None
        while True:
            engine = self.dispatcher.engine_of(program.program_id)
            if engine not in may_take:
                engine = None
            prediction = await self._predict(
                Query(
                    workflow=call.workflow or program.workflow,
                    stage=call.stage,
                    system_text=call.system_text,
                    user_text=call.user_text,
                    token_ids=call.token_ids,
                    history=program.history,
                    engines=may_take if engine is None else [engine],
                    with_lengths=self.dispatcher.needs_lengths,
                    with_confidence=routed and program.confidence is None,
                )
            )
            # The router judges a program by its first request.
            if program.confidence is None:
                program.confidence = prediction.confidence
            prediction.confidence = program.confidence
            # A program that lost its engine meanwhile needs the other engines' ŷ too.
            if engine is None or self.dispatcher.engine_of(program.program_id) == engine:
                return prediction

    async def _forward(self, trip: Trip, slot: Slot, headers: Headers, reply: Reply) -> None:
        engine = slot.decision.engine
        endpoint = self._engines.endpoints[engine]
        decision = {"engine": endpoint.name, "reason": slot.decision.reason}
        reply.headers = [(b"x-chimera-decision", json.dumps(decision).encode())]
        trip.observer = StreamObserver()
        priority = slot.decision.priority if endpoint.takes_priority else None
        body = upstream_body(trip.call, endpoint.served_model, priority)
        try:
            async with open_upstream(
                self._engines.clients[engine], trip.call.kind.path, headers, body
            ) as upstream:
                await self._relay(trip, slot, upstream, reply)
        except EngineError as error:
            _log.warning("%s", error)
            self.metrics.engine_failures.labels(endpoint.name).inc()
            self._engines.lost(engine)
            raise

    async def _relay(self, trip: Trip, slot: Slot, upstream: Upstream, reply: Reply) -> None:
        engine, observer = slot.decision.engine, trip.observer
        try:
            answer = await pass_on(
                trip.call,
                upstream,
                reply,
                observer,
                self.clock,
                on_tokens=partial(self.dispatcher.on_tokens, slot),
            )
        except ApiError:  # it ended its stream early
            self._engines.failed(engine)
            raise
        trip.error = answer.error
        slot.completed = answer.error is None
        if slot.completed:
            self._engines.answered(engine)
        elif upstream.status >= 500 or observer.error_status >= 500:
            self._engines.failed(engine)
        await answer.finish(reply)

    def _pinned_to(self, model: str | None) -> Sequence[int] | None:
        if model in (None, self.model):
            return None
        if found := engines_called(model, self.engine_names, self.engine_models):
            return found
        models = ", ".join(dict.fromkeys(self.engine_models))
        raise no_such_model(model, f"'{self.model}' chooses among {models}")

    def _refuse_if_full(self) -> None:
        waiting = self._in_flight - sum(map(self.dispatcher.outstanding, self._everything))
        if waiting < self.settings.max_waiting:
            return
        up = filter(self.dispatcher.is_up, self._everything)
        raise queue_full(waiting, min(map(self.dispatcher.engine_load_ms, up), default=0.0))

    def _note(self, trip: Trip, now_ms: float) -> None:
        metrics = self.metrics
        if trip.overhead_ms is not None:
            metrics.overhead.observe(trip.overhead_ms / 1000)
        if trip.slot is not None:
            name = self.engine_names[trip.slot.decision.engine]
            metrics.queue.labels(name).observe((trip.queue_ms or 0.0) / 1000)
            metrics.e2e.labels(name).observe((now_ms - trip.arrived_ms) / 1000)
            if trip.ttft_ms is not None:
                metrics.ttft.labels(name).observe(trip.ttft_ms / 1000)
        if self._decisions is not None:
            self._decisions.add(trip.row(now_ms, self.engine_names, self.engine_models))

    async def _forget_old_programs(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.programs.expire(self.clock())

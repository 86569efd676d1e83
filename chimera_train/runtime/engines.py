"""How the gateway reaches its engines, and how it learns which of them answer."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx2

from chimera_train.relay.upstream import open_clients
from chimera_train.runtime.breaker import Breaker, State
from chimera_train.runtime.dispatcher import Dispatcher
from chimera_train.runtime.settings import GatewaySettings

__all__ = ["Endpoint", "Engines"]

_log = logging.getLogger(__name__)

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one engine is reached.

    Attributes:
        name: the engine's name in the pool.
        base_url: ends in ``/v1``.
        served_model: the model name that the engine answers to.
        takes_priority: the engine schedules by priority; others refuse requests that carry one.
        api_key: sent to it; None if it asks for none.
    """

    name: str
    base_url: str
    served_model: str
    takes_priority: bool
    api_key: str | None = field(default=None, repr=False)


class Engines:
    """The engines' endpoints, the HTTP clients that reach them, and which of them answer.

    Args:
        endpoints: in the order of the scheduler's engines.
        settings: limits and timings.
        dispatcher: is told which engines can be used.
        clock: the present in ms.

    Attributes:
        endpoints: as given.
        clients: one for each engine.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: GatewaySettings,
        dispatcher: Dispatcher,
        clock: Callable[[], float],
    ) -> None:
        self.endpoints = list(endpoints)
        self.clients = open_clients(
            [(endpoint.base_url, endpoint.api_key) for endpoint in endpoints],
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
        self._dispatcher = dispatcher
        self._tick_s = settings.probe_interval_s / 4
        waits_ms = settings.probe_interval_s * 1000, settings.probe_interval_max_s * 1000
        self._breakers = [
            Breaker(settings.engine_failures, *waits_ms, clock) for _ in self.endpoints
        ]

    async def find_out(self) -> None:
        """Ask every engine whether it is there."""
        there = await asyncio.gather(*map(self._is_there, range(len(self.endpoints))))
        for engine, is_there in enumerate(there):
            if not is_there:
                self.lost(engine)

    async def keep_probing(self, engine: int) -> None:
        """Whenever its breaker has been open long enough, see whether an engine is back."""
        breaker = self._breakers[engine]
        while True:
            await asyncio.sleep(self._tick_s)
            if breaker.state is State.CLOSED or breaker.wait_ms > 0:
                continue
            breaker.begin_probe()
            is_back = await self._generates(engine)
            breaker.end_probe(was_answered=is_back)
            if is_back:
                _log.warning("Engine '%s' is used again.", self.endpoints[engine].name)
                self._dispatcher.engine_up(engine)

    def lost(self, engine: int) -> None:
        """An engine went away, or is not there."""
        self._breakers[engine].lost()
        self._dispatcher.engine_down(engine)

    def failed(self, engine: int) -> None:
        """An engine answered that it failed."""
        breaker = self._breakers[engine]
        breaker.failed()
        if breaker.state is not State.CLOSED and self._dispatcher.is_up(engine):
            name = self.endpoints[engine].name
            _log.warning("Engine '%s' fails again and again: it is left alone.", name)
            self._dispatcher.engine_down(engine)

    def answered(self, engine: int) -> None:
        """A client got a whole answer from an engine."""
        self._breakers[engine].answered()

    def breaker_state(self, engine: int) -> State:
        """Of one engine's breaker."""
        return self._breakers[engine].state

    def wait_s(self, engines: Iterable[int]) -> int:
        """Whole seconds, at least 1, until the first of ``engines`` may be back."""
        return max(1, math.ceil(min(self._breakers[e].wait_ms for e in engines) / 1000))

    async def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            await client.aclose()

    async def _is_there(self, engine: int) -> bool:
        with suppress(httpx2.HTTPError):
            answer = await self.clients[engine].get("models", timeout=_PROBE_TIMEOUT_S)
            return answer.status_code < 500  # one that asks for a key is there too
        return False

    async def _generates(self, engine: int) -> bool:
        """Whether an engine generates a token: a server whose engine has died lists its models."""
        body = {"model": self.endpoints[engine].served_model, "prompt": "1", "max_tokens": 1}
        with suppress(httpx2.HTTPError):
            answer = await self.clients[engine].post(
                "completions", json=body, timeout=_PROBE_TIMEOUT_S
            )
            return answer.status_code < 500  # one that only chats is there too
        return False

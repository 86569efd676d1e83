"""How the gateway reaches its engines, and how it learns which of them answer."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import httpx2

from chimera_train.relay.upstream import open_clients
from chimera_train.runtime.dispatcher import Dispatcher
from chimera_train.runtime.settings import GatewaySettings

__all__ = ["Endpoint", "Engines"]

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
    """The engines' endpoints and the HTTP clients that reach them.

    Attributes:
        endpoints: in the order of the scheduler's engines.
        clients: one for each engine.
    """

    def __init__(self, endpoints: Sequence[Endpoint], settings: GatewaySettings) -> None:
        self.endpoints = list(endpoints)
        self.clients = open_clients(
            [(endpoint.base_url, endpoint.api_key) for endpoint in endpoints],
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
        )
        self._probe_interval_s = settings.probe_interval_s

    async def probe(self, engines: Sequence[int], dispatcher: Dispatcher) -> None:
        """Ask engines whether they serve, and tell the dispatcher what they answer."""
        answers = await asyncio.gather(*map(self._answers, engines))
        for engine, answered in zip(engines, answers, strict=True):
            if answered:
                dispatcher.engine_up(engine)
            else:
                dispatcher.engine_down(engine)

    async def keep_probing(self, dispatcher: Dispatcher) -> None:
        """Ask the engines that are down, again and again, whether they are back."""
        everything = range(len(self.endpoints))
        while True:
            await asyncio.sleep(self._probe_interval_s)
            await self.probe([e for e in everything if not dispatcher.is_up(e)], dispatcher)

    async def close(self) -> None:
        """Close all connections."""
        for client in self.clients:
            await client.aclose()

    async def _answers(self, engine: int) -> bool:
        with suppress(httpx2.HTTPError):
            answer = await self.clients[engine].get("models", timeout=_PROBE_TIMEOUT_S)
            return answer.status_code < 500  # one that asks for a key is there too
        return False

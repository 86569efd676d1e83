"""How the gateway reaches its engines, and how it learns which of them answer."""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

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
    """

    name: str
    base_url: str
    served_model: str
    takes_priority: bool


class Engines:
    """The engines' endpoints and the HTTP clients that reach them.

    Attributes:
        endpoints: in the order of the scheduler's engines.
        clients: one for each engine.
    """

    def __init__(self, endpoints: Sequence[Endpoint], settings: GatewaySettings) -> None:
        self.endpoints = list(endpoints)
        certificates = httpx2.create_ssl_context()  # reading them takes longer than all the rest
        self.clients = [_client(endpoint, certificates, settings) for endpoint in endpoints]
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


def _client(
    endpoint: Endpoint, certificates: ssl.SSLContext, settings: GatewaySettings
) -> httpx2.AsyncClient:
    loopback = urlsplit(endpoint.base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    return httpx2.AsyncClient(
        base_url=endpoint.base_url,
        verify=certificates,
        timeout=httpx2.Timeout(settings.read_timeout_s, connect=settings.connect_timeout_s),
        # The scheduler's windows bound what is in flight. Servers close idle connections (uvicorn
        # after 5 s); reusing one at that moment would look like an engine that went away.
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0
        ),
        trust_env=not loopback,  # a proxy from the environment never leads to this machine
    )

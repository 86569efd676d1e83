"""A gateway between real HTTP clients and stub engines, all on loopback in one event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import pytest
from streaming_stub import StubEngine, serving

from chimera_train.predict.features import StageRequest
from chimera_train.relay.server import bind
from chimera_train.runtime.access import ApiKeys
from chimera_train.runtime.app import create_app
from chimera_train.runtime.engines import Endpoint
from chimera_train.runtime.gateway import Gateway
from chimera_train.runtime.predictions import Predictors
from chimera_train.runtime.settings import GatewaySettings
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import Chimera, PolicySettings
from chimera_train.scheduling.scheduler import Scheduler

MODELS = ("small", "large")


class StubRouter:
    """The same confidence for every text."""

    reads = "user"

    def __init__(self, confidence: Sequence[float]) -> None:
        self.models = list(MODELS)
        self.confidence = list(confidence)
        self.texts: list[str] = []

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        self.texts += texts
        return np.array([self.confidence] * len(texts))


class StubLength:
    """The number in the user text, or 10 tokens; remembers what it was asked."""

    models = list(MODELS)

    def __init__(self) -> None:
        self.asked: list[tuple[str, StageRequest]] = []

    def template_overhead_tokens(self, model: str) -> int:
        return {"small": 4, "large": 6}[model]

    def predict_with_interval(self, model, requests) -> tuple[np.ndarray, ...]:
        self.asked += [(model, request) for request in requests]
        if any(request.text == "poison" for request in requests):
            raise RuntimeError("poison")
        tokens = np.array([float(r.text) if r.text.isdigit() else 10.0 for r in requests])
        return tokens, tokens, np.stack([tokens / 2, tokens * 2], axis=1)


class WordCounter:
    def count(self, text: str) -> int:
        return len(text.split())


@dataclass
class Rig:
    """A running gateway and what surrounds it."""

    url: str
    gateway: Gateway
    scheduler: Scheduler
    engines: list[StubEngine]
    router: StubRouter
    length: StubLength
    client: httpx2.AsyncClient
    decisions: list[dict[str, Any]]

    async def chat(self, text: str = "hi", **body: Any) -> httpx2.Response:
        headers = body.pop("headers", {})
        body = {"model": "demo", "messages": [{"role": "user", "content": text}], **body}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def idle(self) -> None:
        """Wait until nothing is in flight, then see that nothing is left of it."""
        for _ in range(400):
            if not any(self.scheduler.outstanding(e) + self.scheduler.queued(e) for e in (0, 1)):
                break
            await asyncio.sleep(0.005)
        for program_id in list(self.gateway.programs._programs):
            self.gateway.programs.end(self.gateway.programs.get(program_id))
        assert self.scheduler.load_ms().tolist() == [0.0, 0.0]
        assert [self.scheduler.outstanding(e) for e in (0, 1)] == [0, 0]
        assert [self.scheduler.queued(e) for e in (0, 1)] == [0, 0]
        assert not self.gateway.dispatcher._grants


class ListLog:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def _clock() -> float:
    return asyncio.get_running_loop().time() * 1000


@asynccontextmanager
async def rig(
    *,
    policy: PolicySettings | None = None,
    window: int = 4,
    confidence: Sequence[float] = (0.9, 0.1),
    priority: bool = True,
    dead: Sequence[int] = (),
    models: Sequence[str] = MODELS,
    keys: Sequence[str] = (),
    engine_key: str | None = None,
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Two stub engines behind a gateway; with the defaults every new program goes to the first.

    Engines in ``dead`` have an address where nothing listens.
    """
    engines = [StubEngine("one"), StubEngine("two", tokens=("Bye",))]
    async with AsyncExitStack() as stack:
        for index, engine in enumerate(engines):
            if index in dead:
                listener = bind("127.0.0.1", 0)
                stack.callback(listener.close)
                engine.base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
            else:
                engine.base_url = await stack.enter_async_context(serving(engine.app())) + "/v1"
        profiles = [
            EngineProfile(e.name, model, 10.0, window)
            for e, model in zip(engines, models, strict=True)
        ]
        policy = policy or Chimera(tau=float("inf"), delta_s=0.0)
        scheduler = Scheduler(profiles, policy)
        router, length, log = StubRouter(confidence), StubLength(), ListLog()
        gateway = Gateway(
            "demo",
            [
                Endpoint(e.name, e.base_url, f"{e.name}-served", priority, engine_key)
                for e in engines
            ],
            scheduler,
            Predictors(models, router, length, dict.fromkeys(MODELS, WordCounter())),
            GatewaySettings(**{"probe_interval_s": 0.05, **settings}),
            log,
            _clock,
        )
        url = await stack.enter_async_context(serving(create_app(gateway, ApiKeys(keys))))
        router.texts.clear()
        length.asked.clear()
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=url, timeout=20, verify=False)
        )
        yield Rig(url, gateway, scheduler, engines, router, length, client, log.rows)


@pytest.fixture(name="rig")
def _rig() -> Callable[..., Any]:
    return rig

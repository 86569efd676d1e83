"""A recording proxy between real HTTP clients and stub engines, all on loopback in one loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pyarrow.parquet as pq
import pytest
from streaming_stub import StubEngine, serving

from chimera_train.collect.journal import Journal, open_journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.record.app import create_app
from chimera_train.collect.record.pieces import brief, key
from chimera_train.collect.record.recorder import RecordedEngine, Recorder, wall_clock
from chimera_train.collect.record.session import finish
from chimera_train.collect.record.settings import RecordSettings
from chimera_train.collect.record.tables import RecordResult


class WordCounter:
    def count(self, text: str) -> int:
        return len(text.split())


@dataclass
class Rig:
    """A running recorder of models ``small`` (engines ``one`` and ``two``) and ``large``."""

    url: str
    recorder: Recorder
    journal: Journal
    engines: dict[str, StubEngine]
    client: httpx2.AsyncClient
    openai: openai.AsyncOpenAI
    out: Path

    async def chat(self, text: str = "hi", **body: Any) -> httpx2.Response:
        headers = body.pop("headers", {})
        body = {"model": "small", "messages": [{"role": "user", "content": text}], **body}
        return await self.client.post("/v1/chat/completions", json=body, headers=headers)

    async def outcome(self, name: str, **said: Any) -> httpx2.Response:
        return await self.client.post(f"/v1/programs/{name}/outcome", json=said)

    async def stored(self, pieces: int) -> None:
        """Wait until the journal has so many pieces."""
        for _ in range(400):
            if len(self.journal.entries) >= pieces:
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"only {len(self.journal.entries)} pieces")

    def tables(self) -> tuple[RecordResult, list[dict[str, Any]], list[dict[str, Any]]]:
        """What the tables hold when everything is taken: counts, programs and stages."""
        result = finish(self.out)
        tables = [pq.read_table(self.out / f"{name}.parquet") for name in ("programs", "stages")]
        programs, stages = (table.to_pylist() for table in tables)
        return result, programs, stages


@asynccontextmanager
async def rig(
    out: Path, *, dead: str | None = None, engine_key: str | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    limits = RecordSettings(**settings)
    engines = {name: StubEngine(name) for name in ("one", "two", "big")}
    engines["big"].tokens = ("Bye",)
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            engine.base_url = await stack.enter_async_context(serving(engine.app())) + "/v1"
        if dead is not None:
            engines[dead].base_url = "http://127.0.0.1:9/v1"
        journal = stack.enter_context(open_journal(out, {"command": "collect record"}, key, brief))
        recorder = Recorder(
            [
                RecordedEngine("one", "small", engines["one"].base_url, "served", engine_key),
                RecordedEngine("two", "small", engines["two"].base_url, "served"),
                RecordedEngine("big", "large", engines["big"].base_url, "served-big"),
            ],
            journal,
            {"small": WordCounter()},
            limits,
            Privacy(),
            wall_clock(),
        )
        url = await stack.enter_async_context(serving(create_app(recorder)))
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=url, timeout=20, verify=False)
        )
        official = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        await stack.enter_async_context(official)
        yield Rig(url, recorder, journal, engines, client, official, out)


@pytest.fixture(name="rig")
def _rig(tmp_path: Path) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        return rig(options.pop("out", tmp_path / "recorded"), **options)

    return make

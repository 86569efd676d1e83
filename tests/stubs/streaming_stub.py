"""An engine that streams what it is told to, and a server for it on loopback, in one event loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from chimera_train.relay.server import bind


class _Server(uvicorn.Server):
    """Leaves signals alone, and stops at once instead of at the next tick."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stop = asyncio.Event()

    def capture_signals(self) -> Any:
        return nullcontext()

    async def main_loop(self) -> None:
        await self.stop.wait()


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """Serve ``app`` on loopback; yields its root URL."""
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        assert not task.done(), "the server did not start"
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop.set()
        await task


@dataclass
class StubEngine:
    """Streams ``tokens`` at a fixed pace and remembers what it was asked.

    ``gate`` holds every response back until it is set; ``cut_after`` drops the connection after so
    many tokens; ``answer`` replaces the stream by another response.
    """

    name: str
    tokens: Sequence[str] = ("Hello", " wörld", " ✓")
    pace_s: float = 0.0
    cut_after: int | None = None
    answer: Callable[[], Response] | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    active: int = 0
    cancelled: int = 0
    base_url: str = ""

    def __post_init__(self) -> None:
        self.gate.set()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse({"object": "list", "data": []})),
                Route("/v1/chat/completions", self.generate, methods=["POST"]),
                Route("/v1/completions", self.generate, methods=["POST"]),
            ]
        )

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.answer is not None:
            return self.answer()
        is_chat = request.url.path.endswith("chat/completions")
        return StreamingResponse(self._stream(body, is_chat), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], is_chat: bool) -> AsyncIterator[bytes]:
        self.active += 1
        try:
            await self.gate.wait()
            for count, event in enumerate(self._events(body, is_chat)):
                if self.cut_after == count:
                    raise ConnectionResetError
                self.sent.append(event)
                yield event
                await asyncio.sleep(self.pace_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    def _events(self, body: dict[str, Any], is_chat: bool) -> list[bytes]:
        head = {"id": f"{self.name}-1", "created": 1, "model": body["model"]}
        head["object"] = "chat.completion.chunk" if is_chat else "text_completion"
        n = body.get("n", 1)
        chunks: list[dict[str, Any]] = []
        for token in self.tokens:
            for index in range(n):
                choice = {"delta": {"content": token}} if is_chat else {"text": token}
                chunks.append({"choices": [{"index": index, **choice, "finish_reason": None}]})
        for index in range(n):
            choice = {"delta": {}} if is_chat else {"text": ""}
            chunks.append({"choices": [{"index": index, **choice, "finish_reason": "stop"}]})
        if body.get("stream_options", {}).get("include_usage"):
            output = n * len(self.tokens)
            usage = {"prompt_tokens": 5, "completion_tokens": output, "total_tokens": 5 + output}
            chunks.append({"choices": [], "usage": usage})
        lines = [json.dumps({**head, **chunk}, ensure_ascii=False) for chunk in chunks]
        return [f"data: {line}\n\n".encode() for line in [*lines, "[DONE]"]]

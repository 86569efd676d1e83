"""A stub engine in a process of its own: streams tokens at a fixed pace, whatever is asked."""

import asyncio
import json
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import uvicorn

from chimera_train.relay.server import bind

__all__ = ["MODEL", "process", "serve", "serve_engine"]

MODEL = "stub"


class process:  # noqa: N801
    """A child process that is talked to over a pipe, and ended with the block."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._here, there = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=target, args=(there, *arguments)
        )

    def __enter__(self) -> Connection:
        self._process.start()
        return self._here

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is not None:
            self._process.terminate()
        self._process.join()


def serve_engine(pipe: Connection, n_tokens: int, pace_s: float) -> None:
    """Answer every request with ``n_tokens``, one each ``pace_s``."""

    def event(**fields: Any) -> bytes:
        chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        return b"data: " + json.dumps({**chunk, **fields}).encode() + b"\n\n"

    token = event(choices=[{"index": 0, "delta": {"content": " pen"}, "finish_reason": None}])
    end = (
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        + event(choices=[], usage={"prompt_tokens": 20, "completion_tokens": n_tokens})
        + b"data: [DONE]\n\n"
    )

    about = json.dumps({"data": [{"id": MODEL}], "version": "stub"}).encode()

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": about})
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(n_tokens):
            await asyncio.sleep(pace_s)
            await send({"type": "http.response.body", "body": token, "more_body": True})
        await send({"type": "http.response.body", "body": end})

    serve(app, pipe)


def serve(app: Any, pipe: Connection) -> None:
    """Serve ``app``, send its base URL, and stop when told."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))

    async def run() -> None:
        serving = asyncio.create_task(server.serve([listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        pipe.send(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")
        await asyncio.to_thread(pipe.recv)
        server.should_exit = True
        await serving

    asyncio.run(run())

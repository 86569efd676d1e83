"""A fake engine on a loopback port: vLLM's endpoints, scripted answers, and mishaps on demand."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from chimera_train.collect import alive
from chimera_train.pool import launch
from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Workflow


class FakeEngine:
    """Answers chat requests with the words of ``reply(body)``, one a chunk.

    ``mishap(body)`` may return a status code to answer with instead, or ``drop`` (close the
    connection before the answer), ``cut`` (close it after the first word), ``no_usage`` or
    ``no_end`` (leave these out), or a line to send as the only event. A status comes with
    ``retry_after``. ``thought`` is streamed before every reply as a reasoning parser does, and
    ``usage`` says more. Every completion takes ``delay_s``; ``spans`` has the max_tokens, start and
    end of each.
    """

    def __init__(self) -> None:
        self.reply: Callable[[dict[str, Any]], str] = default_reply
        self.mishap: Callable[[dict[str, Any]], int | str | None] = lambda _: None
        self.delay_s = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ended: list[str] = []
        self.spans: list[tuple[int, float, float]] = []
        self.active = 0
        self.most_active = 0
        self.retry_after: str | None = None
        self.thought = ""
        self.usage: dict[str, Any] = {}
        self.base_url = ""

    def app(self) -> Starlette:
        models = {"data": [{"id": "fake", "max_model_len": 512}]}
        return Starlette(
            routes=[
                Route("/v1/models", lambda _: JSONResponse(models)),
                Route("/version", lambda _: JSONResponse({"version": "0.0.fake"})),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/programs/{program_id}/end", self.end, methods=["POST"]),
            ]
        )

    async def end(self, request: Request) -> Response:
        self.ended.append(request.path_params["program_id"])
        return JSONResponse({})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        mishap = self.mishap(body)
        if isinstance(mishap, int):
            headers = {"Retry-After": self.retry_after} if self.retry_after else None
            error = {"error": {"message": "no can do"}}
            return JSONResponse(error, status_code=mishap, headers=headers)
        return StreamingResponse(self._stream(body, mishap), media_type="text/event-stream")

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        mishap = self.mishap(body)
        if isinstance(mishap, int):
            return JSONResponse({"error": {"message": "no can do"}}, status_code=mishap)
        start = time.monotonic()
        await asyncio.sleep(self.delay_s)
        self.spans.append((body["max_tokens"], start, time.monotonic()))
        usage = {"completion_tokens": body["max_tokens"]}
        events = [
            _event([{"index": i, "text": ""}], usage=usage) for i in range(len(body["prompt"]))
        ]
        return Response(b"".join(events), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], mishap: str | None) -> AsyncIterator[bytes]:
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(self.delay_s)
            if mishap == "drop":
                raise ConnectionResetError
            if mishap is not None and mishap.startswith("data:"):
                yield f"{mishap}\n\n".encode()
                return
            for piece in self.thought.split():
                yield _event([{"index": 0, "delta": {"reasoning_content": f"{piece} "}}])
            words = self.reply(body).split(" ")
            for index, word in enumerate(words):
                content = word if index == 0 else f" {word}"
                yield _event([{"index": 0, "delta": {"content": content}}])
                if mishap == "cut":
                    raise ConnectionResetError
            if mishap != "no_end":
                yield _event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
            if mishap != "no_usage":
                prompt_tokens = sum(len(m["content"].split()) for m in body["messages"])
                usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(words)}
                usage |= self.usage
                yield _event([], usage=usage, metrics={"queue_time_ms": 1.5})
            yield b"data: [DONE]\n\n"
        finally:
            self.active -= 1


class FakeVllm:
    """Streams so many tokens for each prompt as asked, one in ``STEP_S``; counts its work.

    ``metrics`` are lines of ``/metrics`` by name; ``foreign_tokens`` are counted on top of every
    request's; ``stream`` overrides the events of a stream.
    """

    STEP_S = 0.004
    VOCABULARY = 200
    MAX_MODEL_LEN = 256
    CACHE = 'block_size="16",num_gpu_blocks="513",enable_prefix_caching="True"'

    def __init__(self) -> None:
        self.base_url = ""
        self.foreign_tokens = 0
        self.prompts: list[list[int]] = []
        self.stream: list[bytes] | None = None
        self.metrics = {
            f"vllm:cache_config_info{{{self.CACHE}}}": 1.0,
            "vllm:num_requests_running": 0.0,
            "vllm:prompt_tokens_total": 70.0,
        }

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/version", lambda _: JSONResponse({"version": "0.0.fake"})),
                Route("/metrics", self.show),
                Route("/v1/completions", self.complete, methods=["POST"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "fake", "max_model_len": self.MAX_MODEL_LEN}]})

    async def show(self, request: Request) -> Response:
        return Response("".join(f"{name} {value}\n" for name, value in self.metrics.items()))

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        if max(map(max, prompts)) >= self.VOCABULARY:
            return JSONResponse({"error": {"message": "out of vocabulary"}}, status_code=400)
        self.prompts += prompts
        self.metrics["vllm:prompt_tokens_total"] += sum(map(len, prompts)) + self.foreign_tokens
        if not body.get("stream"):
            return JSONResponse({"id": "1", "choices": [], "created": 1, "model": "fake"})
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for event in self.stream or ():
            yield event
            return
        prompts = body["prompt"]
        await asyncio.sleep(sum(map(len, prompts)) * 2e-5)
        for token in range(1, body["max_tokens"] + 1):
            await asyncio.sleep(self.STEP_S)
            for index in range(len(prompts)):
                choice = {"index": index, "text": ""}
                yield _event([choice], usage={"completion_tokens": token})
        yield b"data: [DONE]\n\n"


def _event(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    chunk = {"id": "1", "created": 1, "model": "fake", "object": "chat.completion.chunk"}
    return f"data: {json.dumps({**chunk, 'choices': choices, **fields})}\n\n".encode()


def default_reply(body: dict[str, Any]) -> str:
    """A number that follows from the prompt and the seed; a verifier accepts the even ones."""
    key = json.dumps([body["messages"], body["seed"] if body["temperature"] else 0])
    number = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 100
    if body["messages"][0]["content"].startswith("Check"):
        return f"checked {number} " + ("accept" if number % 2 == 0 else "reject")
    return f"so the answer {number}"


Fake = TypeVar("Fake", FakeEngine, FakeVllm)


class _Server(uvicorn.Server):
    def capture_signals(self) -> Any:
        return nullcontext()


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    config = uvicorn.Config(fake.app(), port=0, log_level="critical", timeout_graceful_shutdown=1)
    server = _Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        threading.Event().wait(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    fake.base_url = f"http://127.0.0.1:{port}/v1"
    yield fake
    server.should_exit = True
    thread.join()


@pytest.fixture(autouse=True)
def _seldom_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that start and die within milliseconds are looked at more often than real ones."""
    monkeypatch.setattr(launch, "_POLL_S", 0.01)
    monkeypatch.setattr(alive, "_POLL_S", 0.01)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with serving(FakeEngine()) as fake:
        yield fake


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    with serving(FakeVllm()) as fake:
        yield fake


@pytest.fixture
def two_engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    with serving(FakeEngine()) as one, serving(FakeEngine()) as two:
        yield one, two


@pytest.fixture
def pool(engine: FakeEngine) -> Pool:
    return Pool(engines=[EngineSpec(name="one", model="fake", base_url=engine.base_url)])


@pytest.fixture
def workflow() -> Workflow:
    """Solve, verify, and revise what is rejected."""
    return Workflow.model_validate(
        {
            "name": "check",
            "stages": [
                {"id": "solve", "role": "solver", "user": "{question}", "max_tokens": 20},
                {
                    "id": "verify",
                    "role": "verifier",
                    "depends_on": ["solve"],
                    "system": "Check it.",
                    "user": "{question}: {solve}",
                    "max_tokens": 10,
                },
                {
                    "id": "revise",
                    "role": "solver",
                    "depends_on": ["verify"],
                    "when": {"stage": "verify", "verdict": "reject"},
                    "user": "{question}: {solve}, {verify}",
                    "max_tokens": 20,
                },
            ],
            "answer": ["revise", "solve"],
        }
    )


class FakeTask:
    """Numbered questions; every answer that ends in an even digit is right."""

    name = "numbers"

    def questions(self, limit: int, seed: int) -> list[Question]:
        return [
            Question(f"numbers-{seed}-{i}", self.name, f"What is {i}?", str(i), {"level": i % 3})
            for i in range(min(limit, 1000))
        ]

    def grade(self, question: Question, text: str) -> float:
        return float(text[-1:] in {"0", "2", "4", "6", "8"})


@pytest.fixture
def task() -> FakeTask:
    return FakeTask()

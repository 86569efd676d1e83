"""Runs one program: one workflow on one question, against one OpenAI-compatible endpoint.

The endpoint may be an engine or a gateway in front of several: every request carries its program,
workflow and stage in headers, which engines ignore.
"""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from chimera_train.relay.events import Event, EventSplitter
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Stage, Workflow, render, verdict

__all__ = [
    "Endpoint", "ProgramResult", "StageResult", "open_endpoint", "request_seed", "run_program",
]  # fmt: skip

_MAX_ATTEMPTS = 3
_RETRY_PAUSE_S = 0.25
# Generous where the machine is busy: a server that is starved of CPU is slow to accept.
_TIMEOUT = httpx2.Timeout(600.0, connect=30.0)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go; ``client`` retries nothing, since retries are made, and counted, here."""

    client: openai.AsyncOpenAI
    model: str


@asynccontextmanager
async def open_endpoint(base_url: str, model: str) -> AsyncIterator[Endpoint]:
    """An endpoint for use in the running event loop, where alone its connections are valid.

    Proxies are never used for loopback.
    """
    loopback = urlsplit(base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=_TIMEOUT,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=not loopback),
    ) as client:
        yield Endpoint(client, model)


@dataclass(frozen=True, slots=True)
class StageResult:
    """One request and its reply. Times are measured by the client, of the last attempt.

    Attributes:
        prompt_tokens, output_tokens: as the endpoint counted them; 0 when the request failed.
        queue_ms: the endpoint's own measurement, where it reports one
            (vLLM: ``--enable-per-request-metrics``).
        ttft_ms: request sent until the first chunk of the stream that carries a choice.
        e2e_ms: request sent until the stream ended or failed.
        attempt: 1 for the first; more when a connection failed before the first token.
        error: None when the reply is whole.
    """

    stage: str
    role: str
    system_text: str
    user_text: str
    output_text: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str | None
    queue_ms: float | None
    ttft_ms: float | None
    e2e_ms: float
    max_tokens: int
    attempt: int
    error: str | None


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """One executed program.

    Attributes:
        latency_ms: first request sent until the last stage completed.
        stages: in the order in which they were sent; skipped stages are absent.
        answer: output of the first of ``workflow.answer`` that ran; empty when none did.
        error: the first failed stage's error; None when every stage that had to run completed.
    """

    program_id: str
    started_at: datetime
    latency_ms: float
    stages: tuple[StageResult, ...]
    answer: str
    error: str | None

    @property
    def output_tokens(self) -> int:
        """Output tokens of all stages."""
        return sum(stage.output_tokens for stage in self.stages)


def request_seed(seed: int, question_id: str, sample: int, stage: str) -> int:
    """The sampling seed of one request, below 2**31: the same in every run and on every model."""
    digest = hashlib.sha256(f"{seed}\0{question_id}\0{sample}\0{stage}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def run_program(
    endpoint: Endpoint,
    workflow: Workflow,
    question: Question,
    *,
    program_id: str,
    sample: int,
    seed: int,
    temperature: float,
) -> ProgramResult:
    """Run ``workflow`` on ``question``; stages whose dependencies are met run at the same time.

    A stage with a ``when`` whose verdict was not given is skipped; a skipped stage does not hold
    up the stages that depend on it, in whose texts it is empty. After a failed stage no further
    stage is started. Failures of the endpoint are recorded in the result, never raised.
    """
    sent: list[str] = []
    results: dict[str, StageResult] = {}
    tasks: dict[str, asyncio.Task[None]] = {}

    async def run(stage: Stage) -> None:
        for name in stage.depends_on:
            await tasks[name]
        if any(result.error is not None for result in results.values()):
            return
        texts = {name: result.output_text for name, result in results.items()}
        when = stage.when
        if when is not None and verdict(texts.get(when.stage, "")) != when.verdict:
            return
        sent.append(stage.id)
        values = {"question": question.text, **texts}
        results[stage.id] = await _request(
            endpoint,
            stage,
            system=render(stage.system, values),
            user=render(stage.user, values),
            seed=request_seed(seed, question.question_id, sample, stage.id),
            temperature=temperature,
            headers={"X-Program-Id": program_id, "X-Workflow": workflow.name, "X-Stage": stage.id},
        )

    started_at = datetime.now(UTC)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for stage_id in workflow.order():
            tasks[stage_id] = group.create_task(run(workflow.stage(stage_id)))
    stages = tuple(results[stage_id] for stage_id in sent)
    errors = [result.error for result in stages if result.error is not None]
    return ProgramResult(
        program_id=program_id,
        started_at=started_at,
        latency_ms=_ms_since(start),
        stages=stages,
        answer=next((results[name].output_text for name in workflow.answer if name in results), ""),
        error=errors[0] if errors else None,
    )


async def _request(
    endpoint: Endpoint,
    stage: Stage,
    *,
    system: str,
    user: str,
    seed: int,
    temperature: float,
    headers: Mapping[str, str],
) -> StageResult:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    attempt = 1
    while True:
        reply = _Reply()
        error: str | None = None
        try:
            # The raw stream: the client's own parser costs 0.2 ms a token, on cores that engines
            # on this machine need.
            async with endpoint.client.chat.completions.with_streaming_response.create(
                model=endpoint.model,
                messages=messages,
                max_tokens=stage.max_tokens,
                temperature=temperature,
                seed=seed,
                stream=True,
                stream_options={"include_usage": True},
                extra_headers=headers,
            ) as response:
                splitter = EventSplitter()
                async for data in response.iter_bytes():
                    for event in splitter.feed(data):
                        reply.add(event)
            error = reply.problem()
        except (openai.APIConnectionError, httpx2.TransportError) as failure:
            if attempt < _MAX_ATTEMPTS and reply.ttft_ms is None and not _is_timeout(failure):
                await asyncio.sleep(_RETRY_PAUSE_S * attempt)
                attempt += 1
                continue
            error = f"connection failed: {failure.__cause__ or failure!r}"
        except openai.APIStatusError as failure:
            body = failure.body
            message = body.get("message") if isinstance(body, dict) else None
            error = f"HTTP {failure.status_code}: {message or failure.message}"
        except (openai.APIError, AttributeError, KeyError, TypeError) as failure:
            # The last three: events of another shape than a chat completion's.
            error = f"bad reply: {failure!r}"
        return StageResult(
            stage=stage.id,
            role=stage.role,
            system_text=system,
            user_text=user,
            output_text="".join(reply.parts),
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            finish_reason=reply.finish_reason,
            queue_ms=reply.queue_ms,
            ttft_ms=reply.ttft_ms,
            e2e_ms=_ms_since(reply.start),
            max_tokens=stage.max_tokens,
            attempt=attempt,
            error=error,
        )


class _Reply:
    """What a stream has brought so far."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.parts: list[str] = []
        self.ttft_ms: float | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.queue_ms: float | None = None
        self._has_usage = False
        self._failure: Mapping[str, Any] | None = None

    def add(self, event: Event) -> None:
        self._failure = event.error or self._failure
        for choice in event.choices:
            # Also without text: the first token may be one that shows nothing, such as the end.
            if self.ttft_ms is None:
                self.ttft_ms = _ms_since(self.start)
            content = (choice.get("delta") or {}).get("content")
            if content:
                self.parts.append(content)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if event.usage is not None and event.payload is not None:
            self._has_usage = True
            self.prompt_tokens = event.usage["prompt_tokens"]
            self.output_tokens = event.usage["completion_tokens"]
            self.queue_ms = (event.payload.get("metrics") or {}).get("queue_time_ms")

    def problem(self) -> str | None:
        if self._failure is not None:
            return f"the stream failed: {self._failure.get('message')}"
        if self.finish_reason is None:
            return "the stream ended before the reply did"
        return None if self._has_usage else "the reply has no token counts (usage)"


def _is_timeout(failure: Exception) -> bool:
    """Whether the endpoint was reached but kept silent: trying again would double the work."""
    unreached = isinstance(failure.__cause__ or failure, httpx2.ConnectTimeout)
    return not unreached and isinstance(failure, openai.APITimeoutError | httpx2.TimeoutException)


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000

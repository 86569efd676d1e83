"""One streamed request to an OpenAI-compatible endpoint, what came of it, and when."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai

from chimera_train.collect.gate import Gate, retry_after_s
from chimera_train.relay.events import Event, EventSplitter

__all__ = ["Call", "Endpoint", "StageResult", "ask", "ms_since", "open_endpoint"]

_MAX_ATTEMPTS = 3
_RETRY_PAUSE_S = 0.25
# An endpoint that refuses a request for longer is not busy but broken.
_PATIENCE_S = 900.0
_REFUSALS = frozenset({429, 503})
# Generous where the machine is busy: a server that is starved of CPU is slow to accept.
_TIMEOUT = httpx2.Timeout(600.0, connect=30.0)
# A connection is opened once for each request in flight, and kept.
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
_END_OF_THINKING = "</think>"
_THINKING = "<think>"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go; ``client`` retries nothing, since retries are made, and counted, here.

    With a ``gate``, requests wait for their turn, and refused ones (429, 503) are sent again.
    """

    client: openai.AsyncOpenAI
    model: str
    gate: Gate | None = None


@asynccontextmanager
async def open_endpoint(
    base_url: str, model: str, gate: Gate | None = None
) -> AsyncIterator[Endpoint]:
    """An endpoint for use in the running event loop, where alone its connections are valid.

    Proxies are never used for loopback.
    """
    loopback = urlsplit(base_url).hostname in {"127.0.0.1", "localhost", "::1"}
    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=_TIMEOUT,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=not loopback, limits=_CONNECTIONS),
    ) as client:
        yield Endpoint(client, model, gate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a stage asks for.

    Attributes:
        branch: which copy of a stage that fans out; None: it does not.
        after: the rows of the program whose outputs it waited for.
        max_tokens, temperature, top_p, seed: as sent; None where not.
    """

    stage: str
    role: str
    branch: int | None = None
    after: tuple[int, ...] = ()
    system_text: str = ""
    user_text: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult(Call):
    """A request, or a tool, and its reply. Times are measured by the client, of the last attempt.

    Attributes:
        tool: its name; None of a request. A tool has no tokens.
        output_text: the reply without what the model was thinking.
        prompt_tokens, output_tokens: as the endpoint counted them; 0 when the request failed.
        reasoning_tokens: of the output, as the endpoint counted them; None when it did not.
        reasoning_text: what the model was thinking, as far as it was shown.
        queue_ms: the endpoint's own measurement, where it reports one
            (vLLM: ``--enable-per-request-metrics``).
        start_ms: the program's start until the request was sent.
        ttft_ms: request sent until the first chunk of the stream that carries a choice.
        e2e_ms: request sent until the stream ended or failed.
        attempt: 1 for the first; more when a connection failed before the first token, or the
            request was refused.
        error: None when the reply is whole.
        is_lost: whether the connection failed, in another way than by taking too long.
    """

    tool: str | None = None
    output_text: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None
    reasoning_text: str = ""
    finish_reason: str | None = None
    queue_ms: float | None = None
    start_ms: float
    ttft_ms: float | None = None
    e2e_ms: float
    attempt: int = 1
    error: str | None = None
    is_lost: bool = False


async def ask(
    endpoint: Endpoint, call: Call, *, headers: Mapping[str, str], program_start: float
) -> StageResult:
    """Send ``call``; failures of the endpoint are recorded in the result, never raised.

    ``program_start`` is of ``time.perf_counter``.
    """
    gate = endpoint.gate
    attempt, first = 1, time.monotonic()
    while True:
        passage: AbstractAsyncContextManager[None] = gate.passage() if gate else nullcontext()
        async with passage:
            reply = _Reply()
            failure = await _send(endpoint, call, headers, reply)
            if gate is not None and failure is None:
                gate.accepted()
        if failure is not None and await _again(gate, reply, failure, attempt, first):
            attempt += 1
            continue
        thought, text = reply.texts()
        return StageResult(
            **asdict(call),
            output_text=text,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            reasoning_tokens=reply.reasoning_tokens,
            reasoning_text=thought,
            finish_reason=reply.finish_reason,
            queue_ms=reply.queue_ms,
            start_ms=(reply.start - program_start) * 1000,
            ttft_ms=reply.ttft_ms,
            e2e_ms=ms_since(reply.start),
            attempt=attempt,
            error=None if failure is None else failure.message,
            is_lost=failure is not None and failure.is_lost,
        )


async def _again(
    gate: Gate | None, reply: "_Reply", failure: "_Failure", attempt: int, first: float
) -> bool:
    """Whether a request that was first sent at ``first`` is to be sent again; waits for that."""
    if gate is not None and failure.status in _REFUSALS:
        now = time.monotonic()
        pause_s = gate.refused(now - ms_since(reply.start) / 1000, failure.wait_s)
        return now + pause_s - first < _PATIENCE_S
    if not failure.is_lost or attempt == _MAX_ATTEMPTS or reply.ttft_ms is not None:
        return False
    await asyncio.sleep(_RETRY_PAUSE_S * attempt)
    return True


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    status: int | None = None
    wait_s: float | None = None
    is_lost: bool = False


async def _send(
    endpoint: Endpoint, call: Call, headers: Mapping[str, str], reply: "_Reply"
) -> _Failure | None:
    """Send one request and fill ``reply``; what went wrong."""
    messages = [{"role": "system", "content": call.system_text}] if call.system_text else []
    messages.append({"role": "user", "content": call.user_text})
    sampling = {} if call.top_p is None else {"top_p": call.top_p}
    try:
        # The raw stream: the client's own parser costs 0.2 ms a token, on cores that engines
        # on this machine need.
        async with endpoint.client.chat.completions.with_streaming_response.create(
            model=endpoint.model,
            messages=messages,
            max_tokens=call.max_tokens,
            temperature=call.temperature,
            seed=call.seed,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers=headers,
            **sampling,
        ) as response:
            splitter = EventSplitter()
            async for data in response.iter_bytes():
                for event in splitter.feed(data):
                    reply.add(event)
        problem = reply.problem()
        return None if problem is None else _Failure(problem)
    except (openai.APIConnectionError, httpx2.TransportError) as failure:
        message = f"connection failed: {failure.__cause__ or failure!r}"
        # Where the endpoint was reached but kept silent, trying again would double the work.
        return _Failure(message, is_lost=not _is_timeout(failure))
    except openai.APIStatusError as failure:
        body = failure.body
        said = body.get("message") if isinstance(body, dict) else None
        message = f"HTTP {failure.status_code}: {said or failure.message}"
        wait_s = retry_after_s(failure.response.headers.get("retry-after"))
        return _Failure(message, status=failure.status_code, wait_s=wait_s)
    except (openai.APIError, AttributeError, KeyError, TypeError) as failure:
        # The last three: events of another shape than a chat completion's.
        return _Failure(f"bad reply: {failure!r}")


class _Reply:
    """What a stream has brought so far."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.parts: list[str] = []
        self.thoughts: list[str] = []
        self.ttft_ms: float | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens: int | None = None
        self.queue_ms: float | None = None
        self._has_usage = False
        self._failure: Mapping[str, Any] | None = None

    def add(self, event: Event) -> None:
        self._failure = event.error or self._failure
        for choice in event.choices:
            # Also without text: the first token may be one that shows nothing, such as the end.
            if self.ttft_ms is None:
                self.ttft_ms = ms_since(self.start)
            delta = choice.get("delta") or {}
            if content := delta.get("content"):
                self.parts.append(content)
            elif thought := delta.get("reasoning") or delta.get("reasoning_content"):
                self.thoughts.append(thought)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if event.usage is not None and event.payload is not None:
            self._has_usage = True
            self.prompt_tokens = event.usage["prompt_tokens"]
            self.output_tokens = event.usage["completion_tokens"]
            details = event.usage.get("completion_tokens_details") or {}
            self.reasoning_tokens = details.get("reasoning_tokens")
            self.queue_ms = (event.payload.get("metrics") or {}).get("queue_time_ms")

    def texts(self) -> tuple[str, str]:
        """What the model was thinking, and its answer.

        An engine without a reasoning parser leaves the thinking in the text, in ``<think>`` tags of
        which the chat template may have given the first; a reply that was cut short lacks the last.
        """
        thought, text = "".join(self.thoughts), "".join(self.parts)
        if thought:
            return thought, text
        before, end, after = text.rpartition(_END_OF_THINKING)
        if end:
            return before.removeprefix(_THINKING).strip(), after.strip()
        if text.lstrip().startswith(_THINKING):
            return text.lstrip().removeprefix(_THINKING).strip(), ""
        return "", text

    def problem(self) -> str | None:
        if self._failure is not None:
            return f"the stream failed: {self._failure.get('message')}"
        if self.finish_reason is None:
            return "the stream ended before the reply did"
        if not self._has_usage:
            return (
                "the reply has no token counts (usage): the endpoint has to support"
                " stream_options.include_usage"
            )
        return None


def ms_since(start: float) -> float:
    """Milliseconds since ``start`` (of ``time.perf_counter``)."""
    return (time.perf_counter() - start) * 1000


def _is_timeout(failure: Exception) -> bool:
    """Whether the endpoint was reached but kept silent."""
    unreached = isinstance(failure.__cause__ or failure, httpx2.ConnectTimeout)
    return not unreached and isinstance(failure, openai.APITimeoutError | httpx2.TimeoutException)

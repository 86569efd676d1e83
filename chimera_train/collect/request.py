"""One streamed request to an OpenAI-compatible endpoint, what came of it, and when."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import asdict, dataclass
from itertools import cycle
from urllib.parse import urlsplit

import httpx2
import openai

from chimera_train.collect.gate import PATIENCE_S, Gate, retry_after_s
from chimera_train.collect.reply import Reply, ms_since, well_formed
from chimera_train.pool.address import may_use_proxy
from chimera_train.relay.events import EventSplitter

__all__ = ["Call", "Endpoint", "StageResult", "ask", "open_endpoint"]

_MAX_ATTEMPTS = 3
_RETRY_PAUSE_S = 0.25
# Comments keep a stream alive for ever: it may take so long in all, and so many bytes.
_LONGEST_REPLY_S = 7200.0
_LARGEST_REPLY_BYTES = 64 << 20
# Of what an endpoint says of an error.
_ERROR_CHARACTERS = 1000
_ERROR_BYTES = 64 << 10
_REFUSALS = frozenset({429, 503})
# Generous where the machine is busy: a server that is starved of CPU is slow to accept.
_TIMEOUT = httpx2.Timeout(600.0, connect=30.0)
# A connection is opened once for each request in flight, and kept.
_CONNECTIONS = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
# With every request a client looks at all of its connections: 256 of one cost 4 ms, 16 a tenth.
_CONNECTIONS_EACH = 16
_API_KEY = "none"  # what the OpenAI client wants where no key is needed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go; clients retry nothing, since retries are made, and counted, here.

    Attributes:
        client: for completions.
        model: the name to put in requests.
        https: clients of which requests take turns (``ask``).
        gate: with one, requests wait for their turn, and refused ones (429, 503) are sent again.
    """

    client: openai.AsyncOpenAI
    model: str
    https: Iterator[httpx2.AsyncClient]
    gate: Gate | None = None


@asynccontextmanager
async def open_endpoint(
    base_url: str, model: str, gate: Gate | None = None, *, api_key: str | None = None
) -> AsyncIterator[Endpoint]:
    """An endpoint for use in the running event loop, where alone its connections are valid.

    Proxies are never used for loopback.
    """
    api_key = api_key or _API_KEY
    # Reading the certificates takes as long as a hundred requests: once, and only if needed.
    verify = httpx2.create_ssl_context() if urlsplit(base_url).scheme == "https" else False
    async with AsyncExitStack() as stack:
        https = [
            await stack.enter_async_context(
                httpx2.AsyncClient(
                    base_url=base_url,
                    headers={"Authorization": f"Bearer {api_key}"},
                    timeout=_TIMEOUT,
                    trust_env=may_use_proxy(base_url),
                    limits=_CONNECTIONS,
                    verify=verify,
                )
            )
            for _ in range(1 if gate is None else math.ceil(gate.most / _CONNECTIONS_EACH))
        ]
        client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            timeout=_TIMEOUT,
            http_client=https[0],
        )
        yield Endpoint(client, model, cycle(https), gate)


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
    attempt, first = 1, math.inf
    while True:
        passage: AbstractAsyncContextManager[None] = gate.passage() if gate else nullcontext()
        async with passage:
            reply = Reply()
            failure = await _send(endpoint, call, headers, reply)
            if gate is not None and failure is None:
                gate.accepted()
        if failure is not None:
            first = min(first, time.monotonic())
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
            error=None if failure is None else well_formed(failure.message[:_ERROR_CHARACTERS]),
            is_lost=failure is not None and failure.is_lost,
        )


async def _again(
    gate: Gate | None, reply: Reply, failure: "_Failure", attempt: int, first: float
) -> bool:
    """Whether a request that first failed at ``first`` is to be sent again; waits for that."""
    if gate is not None and failure.status in _REFUSALS:
        now = time.monotonic()
        pause_s = gate.refused(now - ms_since(reply.start) / 1000, failure.wait_s)
        return now + pause_s - first < PATIENCE_S
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
    endpoint: Endpoint, call: Call, headers: Mapping[str, str], reply: Reply
) -> _Failure | None:
    """Send one request and fill ``reply``; what went wrong."""
    messages = [{"role": "system", "content": call.system_text}] if call.system_text else []
    messages.append({"role": "user", "content": call.user_text})
    body = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": call.max_tokens,
        "temperature": call.temperature,
        "seed": call.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if call.top_p is not None:
        body["top_p"] = call.top_p
    http = next(endpoint.https)
    try:
        # The OpenAI client takes a millisecond a request and 0.2 ms a token more, of cores that
        # engines on this machine need.
        async with (
            asyncio.timeout(_LONGEST_REPLY_S),
            http.stream("POST", "chat/completions", json=body, headers=headers) as response,
        ):
            if response.is_error:
                return await _refusal(response)
            problem = await _read(response, reply)
        return None if problem is None else _Failure(problem)
    except TimeoutError:
        return _Failure(f"the reply did not end within {_LONGEST_REPLY_S:g} s")
    except httpx2.TransportError as failure:
        # Where the endpoint was reached but kept silent, trying again would double the work.
        is_silent = isinstance(failure, httpx2.TimeoutException)
        is_lost = not is_silent or isinstance(failure, httpx2.ConnectTimeout)
        return _Failure(f"connection failed: {failure!r}", is_lost=is_lost)
    except (httpx2.RequestError, AttributeError, KeyError, TypeError) as failure:
        # The last three: events of another shape than a chat completion's.
        return _Failure(f"bad reply: {failure!r}")


async def _read(response: httpx2.Response, reply: Reply) -> str | None:
    """Fill ``reply``; what it lacks."""
    splitter = EventSplitter()
    n_bytes = 0
    async for data in response.aiter_bytes():
        n_bytes += len(data)
        if n_bytes > _LARGEST_REPLY_BYTES:
            return f"the reply was longer than {_LARGEST_REPLY_BYTES >> 20} MiB"
        for event in splitter.feed(data):
            reply.add(event)
    for event in splitter.flush():
        reply.add(event)
    return reply.problem()


async def _refusal(response: httpx2.Response) -> _Failure:
    body = bytearray()
    async for data in response.aiter_bytes():
        body += data
        if len(body) > _ERROR_BYTES:
            break
    text = body.decode(errors="replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        said = said.get("error", said)
    message = said.get("message") if isinstance(said, dict) else None
    return _Failure(
        f"HTTP {response.status_code}: {message or text[:200] or response.reason_phrase}",
        status=response.status_code,
        wait_s=retry_after_s(response.headers.get("retry-after")),
    )

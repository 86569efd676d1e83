"""One request to an engine, streamed back; leaving its context cancels it at the engine."""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager

import httpx2

from chimera_train.errors import EngineError
from chimera_train.pool.address import may_use_proxy
from chimera_train.relay.events import Event, EventSplitter

__all__ = [
    "Headers", "Upstream", "end_to_end_headers", "open_clients", "open_upstream",
    "without_credentials",
]  # fmt: skip

# RFC 9110 §7.6.1, and what describes the connection or encoding of one hop only.
_HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
        "accept-encoding", "content-length", "date", "expect", "host", "server",
    }
)  # fmt: skip

# What proves to this server who its client is; none of an engine's business.
_CREDENTIALS = frozenset({b"authorization", b"cookie", b"api-key", b"x-api-key"})

Headers = list[tuple[bytes, bytes]]


class Upstream:
    """An engine's response whose status and headers have arrived.

    Attributes:
        status: HTTP status.
        headers: its end-to-end headers, names in lower case.
        streams: whether the body is a stream of server-sent events; if not, it is read whole.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = end_to_end_headers(response.headers.raw)
        kind = response.headers.get("content-type", "")
        is_events = kind.partition(";")[0].strip().lower() == "text/event-stream"
        self.streams = response.is_success and is_events

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """The events of the body, those that arrive together at once.

        Their raw bytes, joined, are the body.

        Raises:
            EngineError: the connection broke before the end of the response.
        """
        splitter = EventSplitter()
        try:
            async with aclosing(self._response.aiter_raw()) as chunks:
                async for chunk in chunks:
                    if events := splitter.feed(chunk):
                        yield events
        except httpx2.TransportError as error:
            raise _lost(self._response.request, error) from error
        if rest := splitter.flush():
            yield rest

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            EngineError: the connection broke before the end of the response.
        """
        try:
            return b"".join([chunk async for chunk in self._response.aiter_raw()])
        except httpx2.TransportError as error:
            raise _lost(self._response.request, error) from error


def open_clients(
    addresses: Sequence[tuple[str, str | None]],
    *,
    connect_timeout_s: float,
    read_timeout_s: float,
) -> list[httpx2.AsyncClient]:
    """One HTTP client for each engine.

    Args:
        addresses: the engines' base URLs, each with the API key to send to it, if any.
        connect_timeout_s: time to open a connection.
        read_timeout_s: the longest silence of an engine.
    """
    certificates = httpx2.create_ssl_context()  # reading them takes longer than all the rest
    return [
        httpx2.AsyncClient(
            base_url=base_url,
            headers={} if api_key is None else {"authorization": f"Bearer {api_key}"},
            verify=certificates,
            timeout=httpx2.Timeout(read_timeout_s, connect=connect_timeout_s),
            # The caller bounds what is in flight. Servers close idle connections (uvicorn after
            # 5 s); reusing one at that moment would look like an engine that went away.
            limits=httpx2.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0
            ),
            trust_env=may_use_proxy(base_url),
        )
        for base_url, api_key in addresses
    ]


@asynccontextmanager
async def open_upstream(
    client: httpx2.AsyncClient, path: str, headers: Headers, body: bytes
) -> AsyncIterator[Upstream]:
    """POST ``body`` to an engine; yields when the response headers are there.

    Leaving the context before the body has been read closes the connection, which makes vLLM abort
    the request and free its KV blocks.

    Args:
        client: reaches the engine: its base URL and timeouts apply.
        path: below the base URL.
        headers: end-to-end headers to send.
        body: a JSON document.

    Raises:
        EngineError: the engine could not be reached, or the connection broke.
    """
    # The bytes are relayed as they are, so they must not arrive compressed.
    sent = [*headers, (b"accept-encoding", b"identity")]
    request = client.build_request("POST", path, headers=sent, content=body)
    try:
        response = await client.send(request, stream=True)
    except httpx2.TransportError as error:
        raise _lost(request, error) from error
    try:
        yield Upstream(response)
    finally:
        await response.aclose()


def end_to_end_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that a proxy passes on, names in lower case.

    Left out are hop-by-hop headers, also those that ``Connection`` names, and those that every hop
    sets for itself.
    """
    lower = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower().decode("latin-1")
        for name, value in lower
        if name == b"connection"
        for token in value.split(b",")
    }
    dropped = _HOP_BY_HOP | named
    return [(name, value) for name, value in lower if name.decode("latin-1") not in dropped]


def without_credentials(headers: Headers) -> Headers:
    """``headers``, names in lower case, without those that identify the client."""
    return [header for header in headers if header[0] not in _CREDENTIALS]


def _lost(request: httpx2.Request, error: Exception) -> EngineError:
    reason = str(error) or type(error).__name__
    return EngineError(f"The engine at {request.url} could not be reached or went away: {reason}.")

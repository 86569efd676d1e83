"""Requests reach an engine and its bytes come back as they are."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from chimera_train.errors import EngineError
from chimera_train.relay.upstream import end_to_end_headers, open_upstream

STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def client(handler: object) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url="http://engine/v1", transport=httpx2.MockTransport(handler))


async def test_request_and_stream_pass_unchanged() -> None:
    data = 'data: {"choices": [{"text": "é"}]}\r\n\r\n: ping\n\ndata: [DONE]\n\nrest'.encode()
    seen: list[httpx2.Request] = []

    async def chunks() -> AsyncIterator[bytes]:
        for index in range(len(data)):
            yield data[index : index + 1]

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, headers={**STREAM, "x-request-id": "7"}, content=chunks())

    async with (
        client(handler) as engine,
        open_upstream(engine, "/completions", [(b"authorization", b"Bearer k")], b"{}") as upstream,
    ):
        assert upstream.status == 200
        assert upstream.streams
        assert (b"x-request-id", b"7") in upstream.headers
        events = [event async for together in upstream.events() for event in together]
    assert b"".join(event.raw for event in events) == data
    assert [event.new_tokens for event in events] == [1, 0, 0, 0]
    assert str(seen[0].url) == "http://engine/v1/completions"
    assert seen[0].content == b"{}"
    assert seen[0].headers["authorization"] == "Bearer k"
    assert seen[0].headers["accept-encoding"] == "identity"


async def test_a_whole_body_is_not_a_stream() -> None:
    def handler(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(400, content=chunks())

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"error": '
        yield b"{}}"

    async with client(handler) as engine, open_upstream(engine, "/x", [], b"{}") as upstream:
        assert (upstream.status, upstream.streams) == (400, False)
        assert await upstream.body() == b'{"error": {}}'


@pytest.mark.parametrize(
    "failure", [httpx2.ConnectError("refused"), httpx2.ReadTimeout(""), httpx2.ConnectTimeout("")]
)
async def test_an_engine_that_cannot_be_reached(failure: Exception) -> None:
    def handler(_: httpx2.Request) -> httpx2.Response:
        raise failure

    async with client(handler) as engine:
        with pytest.raises(EngineError, match=r"http://engine/v1/x could not be reached"):
            async with open_upstream(engine, "/x", [], b"{}"):
                pass


async def test_an_engine_that_goes_away() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise httpx2.ReadError("reset")

    def handler(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers=STREAM, content=chunks())

    async with client(handler) as engine:
        async with open_upstream(engine, "/x", [], b"{}") as upstream:
            events = upstream.events()
            assert [event.raw for event in await anext(events)] == [b"data: {}\n\n"]
            with pytest.raises(EngineError, match="went away: reset"):
                await anext(events)
        async with open_upstream(engine, "/x", [], b"{}") as upstream:
            with pytest.raises(EngineError, match="went away: reset"):
                await upstream.body()


def test_headers_of_one_hop_are_dropped() -> None:
    headers = [
        (b"Connection", b"keep-alive, X-Hop"),
        (b"Keep-Alive", b"timeout=5"),
        (b"Transfer-Encoding", b"chunked"),
        (b"TE", b"trailers"),
        (b"Content-Length", b"3"),
        (b"Host", b"a"),
        (b"Accept-Encoding", b"gzip"),
        (b"x-hop", b"1"),
        (b"Authorization", b"Bearer k"),
        (b"Content-Type", b"application/json"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
    ]
    assert end_to_end_headers(headers) == [
        (b"authorization", b"Bearer k"),
        (b"content-type", b"application/json"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]

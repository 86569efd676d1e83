"""The response to one request, as ASGI messages; it knows whether anything was sent yet."""

import json
from typing import Any

from starlette.types import Send

from chimera_train.relay.api import ApiError
from chimera_train.relay.upstream import Headers

__all__ = ["Reply"]


class Reply:
    """Sends one response: a stream piece by piece, or a whole body.

    Attributes:
        status: the HTTP status that was sent; None before anything was.
        headers: sent with whatever is sent first.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.headers: Headers = []
        self._finished = False

    async def write(self, piece: bytes, headers: Headers) -> None:
        """Send a piece of a stream; ``headers`` count with the first one only."""
        if self.status is None:
            await self._start(200, headers)
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self) -> None:
        """End a stream."""
        self._finished = True
        await self._send({"type": "http.response.body", "body": b""})

    async def whole(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a response at once; its length replaces any in ``headers``."""
        length = (b"content-length", str(len(body)).encode())
        await self._start(status, [*headers, length])
        self._finished = True
        await self._send({"type": "http.response.body", "body": body})

    async def json(self, status: int, value: Any, headers: Headers) -> None:
        """Send a JSON object at once, in place of a body of another type."""
        kept = [header for header in headers if header[0] != b"content-type"]
        body = json.dumps(value, separators=(",", ":")).encode()
        await self.whole(status, body, [*kept, (b"content-type", b"application/json")])

    async def error(self, error: ApiError) -> None:
        """Answer with an error, in a stream that has begun as its last events."""
        if self._finished:
            return
        if self.status is None:
            headers = [(k.encode(), v.encode()) for k, v in error.headers.items()]
            headers.append((b"content-type", b"application/json"))
            await self.whole(error.status, error.body(), headers)
        else:
            await self.write(b"data: " + error.body() + b"\n\ndata: [DONE]\n\n", [])
            await self.finish()

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        sent = [*headers, *self.headers]
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

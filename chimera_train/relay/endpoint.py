"""The generating endpoints as ASGI: body limit, disconnects and error answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from chimera_train.relay.api import ApiError, Call, CallKind, parse_call
from chimera_train.relay.reply import Reply
from chimera_train.relay.upstream import Headers as RawHeaders
from chimera_train.relay.upstream import end_to_end_headers

__all__ = ["CallEndpoint", "Serve", "error_response", "no_such_endpoint", "read_body"]

_log = logging.getLogger(__name__)

# The body is written anew.
_OF_THE_BODY = frozenset({b"content-type", b"content-encoding"})

#: Answers a call: with its end-to-end headers, the reply, and when it had been received (ms).
Serve = Callable[[Call, RawHeaders, Reply, float], Coroutine[Any, Any, None]]


class _ClientGoneError(Exception):
    """The client closed its connection before its request was complete."""


class CallEndpoint:
    """One of the generating endpoints, as an ASGI application of its own.

    It is below Starlette's request and response classes because it has to notice a client that
    goes away while nothing is being sent: when the request waits for its slot.

    Args:
        kind: the endpoint.
        serve: answers; cancelled when the client goes away.
        clock: the present in ms.
        body_limit_bytes: larger request bodies are answered 413.
        on_answered: called with the status of every answer; None if there was none.
    """

    def __init__(
        self,
        kind: CallKind,
        serve: Serve,
        clock: Callable[[], float],
        body_limit_bytes: int,
        on_answered: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._serve = serve
        self._clock = clock
        self._body_limit_bytes = body_limit_bytes
        self._on_answered = on_answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        reply = Reply(send)
        try:
            raw = await read_body(receive, self._body_limit_bytes)
            arrived_ms = self._clock()
            call = parse_call(self._kind, raw, Headers(scope=scope))
            headers = [h for h in end_to_end_headers(scope["headers"]) if h[0] not in _OF_THE_BODY]
            headers.append((b"content-type", b"application/json"))  # whatever the client called it
            await _until_disconnect(receive, self._serve(call, headers, reply, arrived_ms))
        except _ClientGoneError:
            return
        except ApiError as error:
            await reply.error(error)
        except Exception:
            _log.exception("A request failed.")
            await reply.error(ApiError(500, "Internal error; see the log.", kind="server_error"))
        finally:
            self._on_answered(reply.status)


def error_response(error: ApiError) -> Response:
    """``error`` as the answer of an endpoint that does not generate."""
    return Response(error.body(), error.status, error.headers, media_type="application/json")


async def no_such_endpoint(request: Request, error: Exception) -> Response:
    """The answer to a path or method that is not served."""
    status, headers = 500, None
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers  # 405 comes with what is allowed
    message = f"This server does not answer {request.method} {request.url.path}."
    return error_response(ApiError(status, message, headers=headers))


async def read_body(receive: Callable[[], Awaitable[Any]], limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        ApiError: 413, it is larger than ``limit_bytes``.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGoneError
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise ApiError(413, f"The request body is larger than {limit_bytes} bytes.")
        if not message.get("more_body", False):
            return bytes(body)


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do ``work``, and cancel it if the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if not task.cancelled():
        task.result()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

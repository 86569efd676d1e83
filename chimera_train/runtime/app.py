"""The gateway as an ASGI application: routes, body limit, disconnects and error answers."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from chimera_train.relay.upstream import end_to_end_headers
from chimera_train.runtime.api import ApiError, CallKind, parse_call
from chimera_train.runtime.gateway import Gateway
from chimera_train.runtime.reply import Reply

__all__ = ["create_app"]

_log = logging.getLogger(__name__)

_KINDS = (CallKind("/chat/completions", "messages"), CallKind("/completions", "prompt"))


class _ClientGoneError(Exception):
    """The client closed its connection before its request was complete."""


def create_app(gateway: Gateway) -> Starlette:
    """The application that serves ``gateway``; its lifespan is the gateway's."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    views = _Views(gateway)
    return Starlette(
        routes=[
            *(Route(f"/v1{k.path}", _CallEndpoint(gateway, k), methods=["POST"]) for k in _KINDS),
            Route("/v1/models", views.models),
            Route("/v1/programs/{program_id:path}/end", views.end_program, methods=["POST"]),
            Route("/v1/programs/{program_id:path}", views.program),
            Route("/health", views.health),
            Route("/metrics", views.metrics),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_endpoint},
    )


class _CallEndpoint:
    """One of the generating endpoints, as an ASGI application of its own.

    It is below Starlette's request and response classes because it has to notice a client that
    goes away while nothing is being sent: when the request waits for its slot.
    """

    def __init__(self, gateway: Gateway, kind: CallKind) -> None:
        self._gateway = gateway
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway, reply = self._gateway, Reply(send)
        try:
            raw = await _read_body(receive, gateway.settings.body_limit_bytes)
            arrived_ms = gateway.clock()
            call = parse_call(self._kind, raw, Headers(scope=scope), gateway.model)
            headers = [h for h in end_to_end_headers(scope["headers"]) if h[0] != b"content-type"]
            headers.append((b"content-type", b"application/json"))  # whatever the client called it
            await _until_disconnect(receive, gateway.serve(call, headers, reply, arrived_ms))
        except _ClientGoneError:
            return
        except ApiError as error:
            await reply.error(error)
        except Exception:
            _log.exception("A request failed.")
            await reply.error(ApiError(500, "Internal error; see the log.", kind="server_error"))
        finally:
            gateway.metrics.requests.labels(reply.status or "none").inc()


class _Views:
    """The endpoints that only show or end something."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_s = int(time.time())

    async def models(self, _: Request) -> Response:
        model = {
            "id": self._gateway.model,
            "object": "model",
            "created": self._started_s,
            "owned_by": "chimera-train",
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def health(self, _: Request) -> Response:
        dispatcher = self._gateway.dispatcher
        engines = {
            name: "up" if dispatcher.is_up(index) else "down"
            for index, name in enumerate(self._gateway.engine_names)
        }
        some_up = "up" in engines.values()
        status = "ok" if some_up else "no engine is up"
        return JSONResponse({"status": status, "engines": engines}, 200 if some_up else 503)

    async def metrics(self, _: Request) -> Response:
        text = generate_latest(self._gateway.metrics.registry)
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def program(self, request: Request) -> Response:
        gateway, program_id = self._gateway, request.path_params["program_id"]
        program = gateway.programs.get(program_id)
        if program is None:
            return _no_such_program(program_id)
        engine = gateway.dispatcher.engine_of(program_id)
        return JSONResponse(
            {
                "program_id": program_id,
                "workflow": program.workflow,
                "engine": None if engine is None else gateway.engine_names[engine],
                "model": None if engine is None else gateway.engine_models[engine],
                "n_requests": program.n_requests,
                "in_flight": program.in_flight,
                "generated_tokens": program.history.generated_tokens,
            }
        )

    async def end_program(self, request: Request) -> Response:
        programs, program_id = self._gateway.programs, request.path_params["program_id"]
        program = programs.get(program_id)
        if program is None:
            return _no_such_program(program_id)
        programs.end(program)
        return JSONResponse({"program_id": program_id, "in_flight": program.in_flight})


def _no_such_program(program_id: str) -> Response:
    message = f"Program '{program_id}' is not running: it never began, has ended, or was forgotten."
    return _error_response(ApiError(404, message, code="program_not_found"))


async def _no_such_endpoint(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error_response(
        ApiError(status, f"The gateway does not answer {request.method} {request.url.path}.")
    )


def _error_response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers, media_type="application/json")


async def _read_body(receive: Receive, limit_bytes: int) -> bytes:
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

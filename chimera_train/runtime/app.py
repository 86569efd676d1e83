"""The gateway as an ASGI application: its routes and what they show."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chimera_train.relay.api import KINDS, ApiError, CallKind
from chimera_train.relay.endpoint import CallEndpoint, error_response, no_such_endpoint
from chimera_train.runtime.access import ApiKeys, Guard
from chimera_train.runtime.gateway import Gateway

__all__ = ["create_app"]


def create_app(gateway: Gateway, keys: ApiKeys) -> Starlette:
    """The application that serves ``gateway`` to who has one of ``keys``.

    Its lifespan is the gateway's.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    views = _Views(gateway)
    return Starlette(
        routes=[
            *(Route(f"/v1{k.path}", _endpoint(gateway, k), methods=["POST"]) for k in KINDS),
            Route("/v1/models", views.models),
            Route("/v1/programs/{program_id:path}/end", views.end_program, methods=["POST"]),
            Route("/v1/programs/{program_id:path}", views.program),
            Route("/v1/programs/{program_id:path}", views.end_program, methods=["DELETE"]),
            Route("/health", views.health),
            Route("/ready", views.ready),
            Route("/metrics", views.metrics),
        ],
        lifespan=lifespan,
        middleware=[
            Middleware(Guard, keys, gateway.settings.header_limit_bytes, _counter(gateway))
        ],
        exception_handlers={HTTPException: no_such_endpoint},
    )


def _endpoint(gateway: Gateway, kind: CallKind) -> CallEndpoint:
    return CallEndpoint(
        kind,
        gateway.serve,
        gateway.clock,
        gateway.settings.body_limit_bytes,
        _counter(gateway),
    )


def _counter(gateway: Gateway) -> Callable[[int | None], None]:
    return lambda status: gateway.metrics.requests.labels(status or "none").inc()


class _Views:
    """The endpoints that only show or end something."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._started_s = int(time.time())

    async def models(self, _: Request) -> Response:
        gateway = self._gateway
        names = dict.fromkeys([gateway.model, *gateway.engine_models])
        head = {"object": "model", "created": self._started_s, "owned_by": "chimera-train"}
        return JSONResponse({"object": "list", "data": [{"id": name, **head} for name in names]})

    async def health(self, _: Request) -> Response:
        engines = self._engines()
        some_up = "up" in engines.values()
        status = "ok" if some_up else "no engine is up"
        return JSONResponse({"status": status, "engines": engines}, 200 if some_up else 503)

    async def ready(self, _: Request) -> Response:
        status = "ready" if "up" in self._engines().values() else "no engine is up"
        if self._gateway.draining:
            status = "draining"
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

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

    def _engines(self) -> dict[str, str]:
        is_up = self._gateway.dispatcher.is_up
        names = enumerate(self._gateway.engine_names)
        return {name: "up" if is_up(index) else "down" for index, name in names}


def _no_such_program(program_id: str) -> Response:
    message = f"Program '{program_id}' is not running: it never began, has ended, or was forgotten."
    return error_response(ApiError(404, message, code="program_not_found"))

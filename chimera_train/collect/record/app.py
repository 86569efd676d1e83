"""The recording proxy as an ASGI application: its routes and what they show."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from chimera_train.collect.record.pieces import Outcome
from chimera_train.collect.record.programs import Program
from chimera_train.collect.record.recorder import Recorder
from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError
from chimera_train.relay.api import KINDS, ApiError, read_object
from chimera_train.relay.endpoint import CallEndpoint, error_response, no_such_endpoint, read_body

__all__ = ["create_app"]


def create_app(recorder: Recorder) -> Starlette:
    """The application that serves ``recorder``; its lifespan is the recorder's."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with recorder.running():
            yield

    limit_bytes = recorder.settings.body_limit_bytes
    generating = [
        Route(
            f"/v1{kind.path}",
            CallEndpoint(kind, recorder.serve, recorder.clock, limit_bytes),
            methods=["POST"],
        )
        for kind in KINDS
    ]
    views = _Views(recorder)
    program = "/v1/programs/{program_id:path}"
    return Starlette(
        routes=[
            *generating,
            Route("/v1/models", views.models),
            Route(f"{program}/end", views.end, methods=["POST"]),
            Route(f"{program}/outcome", views.outcome, methods=["POST"]),
            Route(program, views.program),
            Route("/health", views.health),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: no_such_endpoint, ApiError: _refused},
    )


class _Views:
    """The endpoints that do not generate."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._started_s = int(time.time())

    async def models(self, _: Request) -> Response:
        engines = self._recorder.engines
        names = dict.fromkeys([e.model for e in engines] + [e.name for e in engines])
        head = {"object": "model", "created": self._started_s, "owned_by": "chimera-train"}
        return JSONResponse({"object": "list", "data": [{"id": name, **head} for name in names]})

    async def health(self, _: Request) -> Response:
        recorder = self._recorder
        engines = {e.name: "down" if recorder.is_avoided(e) else "up" for e in recorder.engines}
        is_well = "up" in engines.values() and not recorder.lost
        reason = "requests were not stored: see the log" if recorder.lost else "no engine is up"
        return JSONResponse(
            {"status": "ok" if is_well else reason, "engines": engines, "lost": recorder.lost},
            200 if is_well else 503,
        )

    async def program(self, request: Request) -> Response:
        return self._show(self._find(request))

    async def end(self, request: Request) -> Response:
        program = self._find(request)
        await self._recorder.end(program)
        return self._show(program)

    async def outcome(self, request: Request) -> Response:
        program = self._find(request)
        raw = await read_body(request.receive, self._recorder.settings.body_limit_bytes)
        try:
            outcome = parse_settings(read_object(raw), Outcome, "outcome")
        except ConfigError as error:
            raise ApiError(400, str(error)) from error
        await self._recorder.settle(program, outcome)
        return self._show(program)

    def _find(self, request: Request) -> Program:
        name = request.path_params["program_id"]
        program = self._recorder.programs.get(name)
        if program is None:
            raise ApiError(
                404,
                f"Program '{name}' was not recorded: no request named it.",
                code="program_not_found",
            )
        return program

    def _show(self, program: Program) -> Response:
        recorder = self._recorder
        return JSONResponse(
            {
                "program_id": program.program_id,
                "n_requests": program.n_requests,
                "in_flight": program.in_flight,
                "ended": recorder.programs.has_ended(program, recorder.clock()),
            }
        )


async def _refused(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return error_response(error)

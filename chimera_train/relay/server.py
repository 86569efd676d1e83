"""Running an application under uvicorn: bind early, say when ready, drain on a signal."""

import asyncio
import ipaddress
import math
import socket
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from chimera_train.errors import ChimeraError, ConfigError

__all__ = ["bind", "is_loopback", "run"]


_DRAIN_POLL_S = 0.05
_HEAD_LIMIT_BYTES = 2**20


class _Server(uvicorn.Server):
    """A server that says when it accepts connections, and when it is to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        drain_timeout_s: float,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None] | None,
    ) -> None:
        super().__init__(config)
        self._drain_timeout_s = drain_timeout_s
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end_s = time.monotonic() + self._drain_timeout_s
        if self._on_stop is not None:
            self._on_stop()
            while self.server_state.tasks and not self.force_exit and time.monotonic() < end_s:
                await asyncio.sleep(_DRAIN_POLL_S)
        self.config.timeout_graceful_shutdown = max(0, math.ceil(end_s - time.monotonic()))
        await super().shutdown(sockets)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(host: str, port: int) -> socket.socket:
    """Take the address without listening yet, so that a taken port is found out at once.

    Port 0 is any free one.

    Raises:
        ConfigError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The event loop turns Nagle's algorithm off only where the protocol is named; with it on, every
    # first token waits 40 ms for a delayed acknowledgement.
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((host, port))
    except OSError as error:
        taken.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port} ({error.strerror}):"
            " stop what uses it, or give another --host or --port."
        ) from error
    return taken


def run(
    app: ASGIApp,
    listener: socket.socket,
    drain_timeout_s: float,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None] | None = None,
) -> None:
    """Serve ``app`` until SIGINT or SIGTERM.

    On a signal running requests have ``drain_timeout_s`` to finish, and then the signal takes its
    usual course: KeyboardInterrupt for SIGINT, for SIGTERM what the caller installed. A second
    SIGINT ends it at once. Meanwhile no new connection is accepted; with ``on_stop``, which is
    called first, they are, and ``app`` has to refuse new work.

    Raises:
        ChimeraError: the application did not start.
    """
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Larger heads are answered by h11, where it parses, and not in OpenAI's form; applications
        # have lower limits of their own.
        h11_max_incomplete_event_size=_HEAD_LIMIT_BYTES,
    )
    server = _Server(config, drain_timeout_s, on_ready, on_stop)
    try:
        server.run([listener])
    except SystemExit as error:
        if server.started:
            raise
        raise ChimeraError("The server could not start: see the messages above.") from error

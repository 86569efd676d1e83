"""Ports that belong to a pool from before its engines start until after they have stopped."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineSpec

__all__ = ["reserved_ports"]


@contextmanager
def reserved_ports(specs: Sequence[EngineSpec]) -> Iterator[dict[str, int]]:
    """Yield a loopback TCP port for every engine of ``specs`` that has ``launch``, by name.

    A port is held by a socket that is bound but does not listen. An engine, which sets
    SO_REUSEADDR as every server does, can bind it all the same; the kernel gives it to nobody
    else, however long the engine takes to get there.

    Raises:
        ConfigError: a fixed port is already in use, or two engines have the same one.
    """
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        # Fixed ports first, lest one of them is handed out as a free one.
        for spec in sorted(
            specs, key=lambda spec: spec.launch is None or spec.launch.port == "auto"
        ):
            if spec.launch is None:
                continue
            fixed = None if spec.launch.port == "auto" else spec.launch.port
            for other, port in ports.items():
                if port == fixed:
                    raise ConfigError(f"Engines '{other}' and '{spec.name}' both have port {port}.")
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(("127.0.0.1", fixed or 0))
            except OSError as error:
                raise ConfigError(
                    f"Port {fixed} of engine '{spec.name}' cannot be used ({error.strerror}): "
                    "stop what uses it, or set port: auto."
                ) from error
            ports[spec.name] = holder.getsockname()[1]
        yield ports

"""Binding and starting: what cannot work is said in one sentence."""

import asyncio
import os
import signal
import socket
import threading

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from chimera_train.errors import ChimeraError, ConfigError
from chimera_train.relay.server import bind, is_loopback, run


def test_a_taken_port_is_found_out_at_once() -> None:
    with bind("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} .*--port"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


async def test_small_pieces_are_not_held_back() -> None:
    with bind("127.0.0.1", 0) as listener:
        accepted = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda _, w: accepted.set_result(w), sock=listener)
        _, client = await asyncio.open_connection(*listener.getsockname())
        writer = await accepted
        connection = writer.get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for stream in (client, writer):
            stream.close()
            await stream.wait_closed()
        server.close()


def test_an_address_that_is_not_this_machines() -> None:
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("::", "192.0.2.1", "gateway.example")))


def test_an_application_that_does_not_start() -> None:
    async def app(scope, receive, send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with bind("127.0.0.1", 0) as listener, pytest.raises(ChimeraError, match="could not start"):
        run(app, listener, 1.0, lambda: pytest.fail("it is not ready"))


def test_while_it_drains_it_says_so_and_finishes_what_runs() -> None:
    stopping = threading.Event()
    answers: dict[str, str] = {}

    async def slow(_) -> PlainTextResponse:
        os.kill(os.getpid(), signal.SIGINT)
        while "probe" not in answers:
            await asyncio.sleep(0.01)
        return PlainTextResponse("whole")

    async def probe(_) -> PlainTextResponse:
        return PlainTextResponse("stopping" if stopping.is_set() else "running")

    app = Starlette(routes=[Route("/slow", slow), Route("/probe", probe)])

    def ask(path: str) -> None:
        answers[path] = httpx2.get(f"{url}/{path}", timeout=10, trust_env=False).text

    def probe_once_stopping() -> None:
        assert stopping.wait(10)
        ask("probe")

    with bind("127.0.0.1", 0) as listener:
        url = "http://{}:{}".format(*listener.getsockname())
        clients = [
            threading.Thread(target=ask, args=("slow",)),
            threading.Thread(target=probe_once_stopping),
        ]
        with pytest.raises(KeyboardInterrupt):
            run(app, listener, 20.0, lambda: [c.start() for c in clients], stopping.set)
    for client in clients:
        client.join()
    assert answers == {"slow": "whole", "probe": "stopping"}

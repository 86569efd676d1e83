import socket
from collections.abc import Callable

import pytest

from chimera_train.errors import ConfigError
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.schema import EngineSpec, Pool


def listen(port: int = 0, *, reuse_port: bool = False) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def test_free_ports_differ_and_are_free(stub_pool: Callable[..., Pool]) -> None:
    with reserved_ports(stub_pool(6).engines) as ports:
        assert sorted(ports) == list("abcdef")
        assert len(set(ports.values())) == 6


@pytest.mark.parametrize("reuse_port", [False, True])
def test_an_engine_can_listen_on_its_reserved_port(
    stub_pool: Callable[..., Pool], reuse_port: bool
) -> None:
    with (
        reserved_ports(stub_pool().engines) as ports,
        listen(ports["a"], reuse_port=reuse_port),
        socket.create_connection(("127.0.0.1", ports["a"])),
    ):
        pass


def test_a_reserved_port_is_given_to_nobody_else(stub_pool: Callable[..., Pool]) -> None:
    with (
        reserved_ports(stub_pool().engines) as ports,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", ports["a"]))


@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_fixed_port_in_use_is_named(stub_pool: Callable[..., Pool], reuse_port: bool) -> None:
    with listen(reuse_port=reuse_port) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=rf"Port {port} of engine 'a' .*in use"),
            reserved_ports(stub_pool(port=port).engines),
        ):
            pass


def test_a_fixed_port_is_the_engines(stub_pool: Callable[..., Pool]) -> None:
    with listen() as server:
        port = server.getsockname()[1]
    with reserved_ports(stub_pool(port=port).engines) as ports:
        assert ports == {"a": port}


def test_two_engines_cannot_have_one_port(stub_pool: Callable[..., Pool]) -> None:
    with (
        pytest.raises(ConfigError, match="'a' and 'b' both have port 18000"),
        reserved_ports(stub_pool(2, port=18000).engines),
    ):
        pass


def test_an_engine_that_already_runs_needs_no_port() -> None:
    spec = EngineSpec(name="far", model="org/name", base_url="http://10.0.0.1:8000/v1")
    with reserved_ports([spec]) as ports:
        assert ports == {}

"""Engines that run already and ask for a key."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from chimera_train.errors import ConfigError, EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import EngineSpec, Pool


class _Engine(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers.get("authorization") == "Bearer sk-engine"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "org/m"}]}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pool() -> Iterator[Pool]:
    server = HTTPServer(("127.0.0.1", 0), _Engine)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    spec = EngineSpec(name="far", model="org/m", base_url=url, api_key_env="ENGINE_KEY")
    yield Pool(engines=[spec])
    server.shutdown()
    server.server_close()


def test_it_is_sent_the_key_in_the_environment(pool, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGINE_KEY", "sk-engine")
    with running_pool(pool, log_dir=tmp_path, output=Output(quiet=True)) as (engine,):
        assert (engine.served_model, engine.api_key) == ("org/m", "sk-engine")
        assert "sk-engine" not in repr(engine)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (None, ConfigError, "'far' takes its key from .* ENGINE_KEY, which is not set"),
        ("two words", ConfigError, "not set to one word"),
        ("sk-wrong", EngineError, "status 401: check its api_key_env"),
    ],
)
def test_a_key_that_does_not_fit(pool, monkeypatch, tmp_path, key, error, words) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("ENGINE_KEY", key)
    with (
        pytest.raises(error, match=words) as raised,
        running_pool(pool, log_dir=tmp_path, output=Output(quiet=True)),
    ):
        pass
    assert "sk-wrong" not in str(raised.value)


def test_a_key_in_place_of_its_variable_is_refused_and_not_shown() -> None:
    with pytest.raises(ValueError, match="api_key_env") as raised:
        EngineSpec(name="a", model="m", base_url="http://a/v1", api_key_env="sk-engine-1")
    first = raised.value.errors()[0]["msg"]
    assert "sk-engine" not in first
    with pytest.raises(ValueError, match="belongs to 'base_url'"):
        EngineSpec(name="a", model="m", launch={}, api_key_env="KEY")

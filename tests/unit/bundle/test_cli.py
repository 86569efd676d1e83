"""The commands ``export``, ``bundle`` and ``serve`` as they are typed."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pyarrow.parquet as pq
import pytest
import typer
import yaml
from typer.testing import CliRunner

from chimera_train.bundle.export import Parts
from chimera_train.cli import bundle as bundle_cli
from chimera_train.cli import export as export_cli
from chimera_train.cli import serve as serve_cli
from chimera_train.errors import ConfigError, DataError

RUNNER = CliRunner()


def run(*arguments: object) -> Any:
    app = typer.Typer()
    for module in (export_cli, bundle_cli, serve_cli):
        module.register(app)
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def write_pool(path: Path, models: dict[str, str], base_url: str = "http://127.0.0.1:9/v1") -> Path:
    engines = [{"name": n, "model": m, "base_url": base_url} for n, m in models.items()]
    path.write_text(yaml.safe_dump({"engines": engines}))
    return path


def local_models(parts: Parts) -> dict[str, str]:
    """The parts' engines with models that are directories here, which the parts then name."""
    names = {}
    for model, tokenizer in parts.tokenizers.items():
        assert tokenizer is not None
        (tokenizer.parent / "config.json").write_text("{}")
        names[model] = str(tokenizer.parent)
    described = [
        parts.length / "length.json",
        parts.router / "router.json",
        *parts.latency.values(),
    ]
    for path in described:
        text = path.read_text()
        for model, directory in names.items():
            text = text.replace(model, directory)
        path.write_text(text)
    return {engine: names[model] for engine, model in parts.engines.items()}


def test_export_show_and_verify(parts: Parts, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.yaml", local_models(parts))
    exported = run(
        "export", "--length", parts.length, "--router", parts.router, "--policy", parts.policy,
        "--latency", parts.latency["one"].parent, "--pool", pool, "--name", "demo",
        "--out", tmp_path / "out", "--json",
    )  # fmt: skip
    assert exported.exit_code == 0, exported.output
    values = json.loads(exported.stdout)
    assert (values["name"], values["version"], values["problems"]) == ("demo", 1, [])
    path = Path(values["path"])
    assert path == tmp_path / "out" / "demo" / "1"

    shown = json.loads(run("bundle", "show", path, "--json").stdout)
    assert shown["version"] == 1
    assert len(shown["entries"]) == shown["files"] == values["files"]
    assert shown["router"]["kind"] == "encoder"
    assert [label["scale"] for label in shown["router"]["labels"]] == [1.0, 1.0]
    assert shown["policy"]["delta_s"] == 0.1
    verified = run("bundle", "verify", path, "--json")
    assert json.loads(verified.stdout) == {
        "name": "demo", "version": 1, "files": values["files"], "problems": [],
    }  # fmt: skip
    assert "demo, version 1" in run("bundle", "show", path).stdout
    assert "are as exported" in run("bundle", "verify", path).stdout


def test_verify_reports_every_problem_and_fails(bundle: Path) -> None:
    (bundle / "policy.json").unlink()
    (bundle / "extra").write_text("")
    verified = run("bundle", "verify", bundle, "--json")
    assert json.loads(verified.stdout)["problems"] == [
        "policy.json is missing.",
        "extra is not part of the bundle.",
    ]
    assert isinstance(verified.exception, DataError)
    shown = run("bundle", "show", bundle)
    assert shown.exit_code == 0
    assert "policy.json is missing." in shown.stdout
    assert isinstance(run("bundle", "verify", bundle.parent).exception, DataError)


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        ({"one": "org/other"}, "Engine 'one' serves 'org/other', but the bundle 'demo' version 1"),
        ({"nine": "org/small"}, "Engine 'nine' of the pool is not in the bundle 'demo'"),
    ],
)
def test_serve_refuses_engines_that_the_bundle_does_not_know(
    bundle: Path, tmp_path: Path, engines: dict[str, str], message: str
) -> None:
    pool = write_pool(tmp_path / "pool.yaml", engines)
    refused = run("serve", "--bundle", bundle, "--pool", pool, "--port", 0)
    assert isinstance(refused.exception, ConfigError)
    assert message in str(refused.exception)


def test_serve_warns_where_anybody_may_ask(bundle: Path, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool.yaml", {"nine": "org/small"})
    keys = tmp_path / "keys"
    keys.write_text("sk-one")
    for arguments, warned in (
        (["--host", "::"], True),
        (["--host", "::", "--api-keys", keys], False),
        (["--host", "::1"], False),
    ):
        refused = run("serve", "--bundle", bundle, "--pool", pool, "--port", 0, *arguments)
        assert ("give --api-keys" in refused.stderr) == warned


class _Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("application/json", b'{"data": [{"id": "served-name"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
            for text in ("so", " it", " is")
        ]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}})
        events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
        self._answer("text/event-stream", *events, b"data: [DONE]\n\n", pause_s=0.1)

    def _answer(self, kind: str, *pieces: bytes, pause_s: float = 0.0) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(sum(map(len, pieces))))
        self.end_headers()
        for piece in pieces:
            self.wfile.write(piece)
            time.sleep(pause_s)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def engine() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An engine that serves ``served-name``; yields its base URL and what it is asked."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Engine) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1", server.asked
        finally:
            server.shutdown()
            thread.join()


SERVE = """
import typer
from chimera_train.cli import serve
app = typer.Typer()
app.callback()(lambda: None)
serve.register(app)
app()
"""


@contextmanager
def serving(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVE, "serve", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_serve_from_start_to_signal(bundle: Path, tmp_path: Path) -> None:
    decisions = tmp_path / "decisions"
    with engine() as (base_url, asked):
        pool = write_pool(
            tmp_path / "pool.yaml", {"two": "org/large", "one": "org/small"}, base_url
        )
        with serving(
            "--bundle", bundle, "--pool", pool, "--port", 0, "--decisions", decisions
        ) as process:  # fmt: skip
            assert process.stderr is not None
            ready = process.stderr.readline()
            assert ready.startswith("demo 1 on http://127.0.0.1:"), ready
            assert ready.strip().endswith("with two, one")
            with openai.OpenAI(base_url=ready.split()[3], api_key="none") as client:
                whole = client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "a b"}]
                )
                assert whole.choices[0].message.content == "so it is"
                stream = client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "b"}], stream=True
                )
                first = next(stream)
                process.send_signal(signal.SIGTERM)
                texts = [chunk.choices[0].delta.content or "" for chunk in (first, *stream)]
                assert "".join(texts) == "so it is", "what runs is finished"
            assert process.stderr.read() == ""
            assert process.wait() == 128 + signal.SIGTERM
    assert [(body["model"], body["priority"]) for body in asked] == [("served-name", 30)] * 2
    (shard,) = decisions.glob("decisions-*.parquet")
    table = pq.read_table(shard)
    assert table.schema.metadata[b"bundle"] == b"demo"
    row, drained = table.to_pylist()
    assert (drained["error"], drained["realised_tokens"]) == (None, 3)
    assert (row["engine"], row["model"]) == ("one", "org/small")
    assert (row["predicted_tokens"], row["realised_tokens"]) == (30.0, 3)
    assert dict(row["q"]) == pytest.approx({"two": 0.2689, "one": 0.8808}, abs=1e-4)

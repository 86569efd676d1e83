"""The gateway in front of a real vLLM: what a client gets is what the engine would have said."""

import dataclasses
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow.parquet as pq
import pytest
import uvicorn
from starlette.types import ASGIApp

from chimera_train.collect.journal import open_journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.record.app import create_app as create_recorder
from chimera_train.collect.record.pieces import brief, key
from chimera_train.collect.record.recorder import RecordedEngine, Recorder, wall_clock
from chimera_train.collect.record.session import finish
from chimera_train.collect.record.settings import RecordSettings
from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.models import tokenizer_file
from chimera_train.pool.schema import load_pool
from chimera_train.predict.tokens import TokenCounter
from chimera_train.relay.server import bind
from chimera_train.runtime.access import ApiKeys
from chimera_train.runtime.app import create_app
from chimera_train.runtime.engines import Endpoint
from chimera_train.runtime.gateway import Gateway
from chimera_train.runtime.predictions import Predictors
from chimera_train.runtime.settings import GatewaySettings
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import Chimera
from chimera_train.scheduling.scheduler import Scheduler

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MODEL = "package:pocket-qwen"
QUESTION = "Tom has 12 apples. He buys 5 apples. How many apples does Tom have?"
CHAT = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, "temperature": 0}
TEXT = {"prompt": "Tom has 12 apples .", "max_tokens": 8, "temperature": 0}
SAMPLED = {"temperature": 0.8, "seed": 7, "n": 2}


class FixedLength:
    def template_overhead_tokens(self, model: str) -> int:
        return 0

    def predict_with_interval(self, _: str, requests: Sequence[Any]) -> tuple[np.ndarray, ...]:
        n = len(requests)
        return np.full(n, 20.0), np.full(n, 10.0), np.full((n, 2), [10.0, 40.0])


class FixedRouter:
    models = (MODEL,)
    reads = "user"

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        return np.full((len(texts), 1), 0.5)


@dataclasses.dataclass
class Rig:
    direct: httpx2.Client
    gateway: httpx2.Client
    scheduler: Scheduler


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    pool = load_pool(Path("pipelines/demo/pool.yaml"))
    logs = tmp_path_factory.mktemp("logs")
    tokenizer = tokenizer_file(MODEL)
    assert tokenizer is not None
    with running_pool(pool, log_dir=logs, output=Output(quiet=True), only=["qwen"]) as (engine,):
        scheduler = Scheduler([EngineProfile("qwen", MODEL, 10.0, 8)], Chimera())
        gateway = Gateway(
            "demo",
            [Endpoint("qwen", engine.base_url, engine.served_model, takes_priority=True)],
            scheduler,
            Predictors([MODEL], FixedRouter(), FixedLength(), {MODEL: TokenCounter(tokenizer)}),
            GatewaySettings(),
            None,
            lambda: time.monotonic() * 1000,
        )
        with (
            httpx2.Client(base_url=engine.base_url + "/", timeout=120) as direct,
            serving(create_app(gateway, ApiKeys())) as through,
        ):
            yield Rig(direct, through, scheduler)


@contextmanager
def serving(app: ASGIApp) -> Iterator[httpx2.Client]:
    """A client of ``app``, which runs in a thread."""
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/"
    try:
        with httpx2.Client(base_url=url, timeout=120) as client:
            while not server.started:
                assert thread.is_alive(), "the application did not start"
                time.sleep(0.01)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs between two requests, and with absent fields as null ones."""
    return {
        key: _without_empty(value)
        for key, value in response.items()
        if key not in {"id", "created"} and value is not None
    }


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_empty(v) for k, v in value.items() if v is not None and v != []}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def told(body: bytes) -> dict[str, Any]:
    """What a stream says, however the engine cut it: it merges tokens when it is ahead."""
    datas = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert datas.pop() == b"[DONE]"
    chunks = [json.loads(data) for data in datas]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    return {
        "text": "".join(choice["delta"].get("content", "") for choice in choices),
        "first": choices[0]["delta"],
        "finish_reason": [choice["finish_reason"] for choice in choices][-1],
        "usage": [chunk["usage"] for chunk in chunks if not chunk["choices"]],
        "heads": {(chunk["object"], chunk["model"]) for chunk in chunks},
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("chat/completions", {**CHAT, **SAMPLED}),
        ("chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
        ("chat/completions", {**CHAT, "stop": ["="], "return_token_ids": True}),
        ("completions", TEXT),
        ("completions", {**TEXT, **SAMPLED, "logprobs": 2}),
        ("completions", {**TEXT, "prompt": ["Tom has 12", "Ann has 3"]}),
    ],
)
def test_a_reassembled_response_is_the_engines_own(rig: Rig, path: str, body: dict) -> None:
    expected = rig.direct.post(path, json={**body, "model": MODEL})
    assert expected.status_code == 200, expected.text
    answer = rig.gateway.post(path, json={**body, "model": "demo"})
    assert plain(answer.json()) == plain(expected.json())


@pytest.mark.parametrize("usage", [True, False])
def test_a_stream_is_the_engines_own(rig: Rig, usage: bool) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": usage}}
    expected = rig.direct.post("chat/completions", json={**body, "model": MODEL})
    answer = rig.gateway.post("chat/completions", json={**body, "model": "demo"})
    assert told(answer.content) == told(expected.content)
    assert len(told(answer.content)["usage"]) == usage
    assert answer.headers["content-type"] == expected.headers["content-type"]


def test_an_error_is_the_engines_own(rig: Rig) -> None:
    body = {**CHAT, "max_tokens": 100_000}
    expected = rig.direct.post("chat/completions", json={**body, "model": MODEL})
    answer = rig.gateway.post("chat/completions", json={**body, "model": "demo"})
    assert expected.status_code == 400
    assert (answer.status_code, answer.json()) == (400, expected.json())


def test_a_client_that_goes_away_stops_the_generation(rig: Rig) -> None:
    def running() -> float:
        text = rig.direct.get("../metrics").text
        lines = (line for line in text.splitlines() if "num_requests_running{" in line)
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    body = {**CHAT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with rig.gateway.stream("POST", "chat/completions", json=body) as answer:
        # An iterator that nobody holds closes the stream with its first piece.
        pieces = answer.iter_raw()
        assert next(pieces)
        assert running() == 1
    for _ in range(100):
        if running() == 0:
            break
        time.sleep(0.05)
    assert running() == 0
    assert rig.scheduler.outstanding(0) == 0
    assert rig.scheduler.load_ms().tolist() == [0.0]


def test_a_recording_is_what_the_engine_said(rig: Rig, tmp_path: Path) -> None:
    engine = RecordedEngine("qwen", MODEL, str(rig.direct.base_url).rstrip("/"), MODEL)
    with open_journal(tmp_path / "recorded", {"command": "collect record"}, key, brief) as journal:
        recorder = Recorder([engine], journal, {}, RecordSettings(), Privacy(), wall_clock())
        with serving(create_recorder(recorder)) as client:
            body = {**CHAT, "model": "qwen"}
            whole = client.post("chat/completions", json=body)
            stream = client.post("chat/completions", json={**body, "stream": True})
    expected = rig.direct.post("chat/completions", json={**CHAT, "model": MODEL})
    assert plain(whole.json()) == plain(expected.json())
    text = expected.json()["choices"][0]["message"]["content"]
    assert told(stream.content)["text"] == text
    assert told(stream.content)["usage"] == []
    result = finish(tmp_path / "recorded")
    assert (result.programs, result.failed) == (2, 0)
    usage = expected.json()["usage"]
    for row in pq.read_table(tmp_path / "recorded/stages.parquet").to_pylist():
        assert row["output_text"] == text
        assert row["output_tokens"] == usage["completion_tokens"]
        assert row["prompt_tokens"] == usage["prompt_tokens"]

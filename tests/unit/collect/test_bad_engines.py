"""Engines that answer anything: each request fails by itself, and good engines do the work."""

import asyncio
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from chimera_train.collect import crew, request
from chimera_train.collect import gate as gates
from chimera_train.collect.gate import Gate
from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.reply import well_formed
from chimera_train.collect.request import open_endpoint
from chimera_train.collect.runner import ProgramResult, Sampling, run_program
from chimera_train.collect.traces import CollectResult, collect_traces
from chimera_train.errors import ChimeraError, EngineError
from chimera_train.output import Output
from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.tasks.model import Question
from chimera_train.traces.store import read_table
from chimera_train.workflows.model import Workflow

DIRECT = Workflow.model_validate(
    {
        "name": "one",
        "stages": [{"id": "a", "role": "r", "user": "{question}", "max_tokens": 5}],
        "answer": ["a"],
    }
)
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": 2}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_PAUSE_AFTER_FAILURE_S", 0.0)
    monkeypatch.setattr(request, "_RETRY_PAUSE_S", 0.0)


def says(delta: Any = "so", finish_reason: Any = None) -> dict[str, Any]:
    delta = {"content": delta} if not isinstance(delta, dict) else delta
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def counts(**usage: Any) -> dict[str, Any]:
    return {"choices": [], "usage": USAGE | usage}


async def answered(base_url: str) -> ProgramResult:
    async with open_endpoint(base_url, "fake", Gate(2)) as endpoint:
        return await run_program(
            endpoint,
            DIRECT,
            Question("q", "t", "What?", ""),
            Sampling(0, 0.0),
            program_id="p",
            sample=0,
        )


async def reply_of(engine: Any, *events: Any) -> ProgramResult:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    engine.mishap = lambda _: "\n\n".join(f"data: {line}" for line in lines)
    return await answered(engine.base_url)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([says(5), END, counts()], "5 is no text"),
        ([says({"reasoning": ["x"]}), END, counts()], r"\['x'\] is no text"),
        ([says(finish_reason={"a": 1}), counts()], "is no text"),
        ([says(), END, counts(prompt_tokens=None)], "None is no count"),
        ([says(), END, counts(completion_tokens="2")], "'2' is no count"),
        ([says(), END, counts(completion_tokens=-1)], "-1 is no count"),
        ([says(), END, counts(completion_tokens=10**30)], "is no count"),
        ([says(), END, counts(completion_tokens_details={"reasoning_tokens": 0.5})], "0.5 is no"),
        ([says(), END, counts() | {"metrics": {"queue_time_ms": "soon"}}], "'soon' is no time"),
        ([says(), END, counts() | {"metrics": {"queue_time_ms": float("nan")}}], "nan is no time"),
        (['{"choices": ' + "[" * 10**5, END, counts()], "no JSON object"),
        ([says(), "half a", END, counts()], "no JSON object"),
    ],
)
async def test_events_with_other_values_are_an_error(engine: Any, events: Any, words: str) -> None:
    result = await reply_of(engine, *events)
    assert result.error is not None
    assert result.error.startswith("bad reply: ")
    assert re.search(words, result.error)
    assert result.output_tokens in (0, 2)


async def test_halves_of_a_character_are_joined_or_replaced(engine: Any) -> None:
    events = [says(half) for half in ("\ud83d", "\ude00", " \ud83d.")]
    result = await reply_of(engine, *events, END, counts())
    assert (result.error, result.answer) == (None, "\U0001f600 \ufffd.")
    assert well_formed("a\ude00\ud83db") == "a\ufffd\ufffdb"


async def raw(*pieces: bytes, pace_s: float = 0.0, end: bool = True) -> ProgramResult:
    """The result where an endpoint answers with these bytes and, with ``end``, hangs up."""

    served: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            served.append(task)
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pace_s)
            while not end:
                writer.write(pieces[-1])
                await writer.drain()
                await asyncio.sleep(pace_s)
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        result = await answered(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        await asyncio.gather(*served)
        return result


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
SAYS, STOPS, COUNTS = (f"data: {json.dumps(e)}\n\n".encode() for e in (says(), END, counts()))


async def test_a_last_event_may_lack_its_end_but_not_its_half() -> None:
    whole = await raw(HEAD, SAYS, STOPS, COUNTS.rstrip())
    assert (whole.error, whole.answer) == (None, "so")
    assert (await raw(HEAD, SAYS, STOPS, COUNTS[:30])).error is not None


async def test_streams_of_huge_lines_are_read(engine: Any) -> None:
    line = b": " + b"x" * (1 << 20) + b"\n\n"
    assert (await raw(HEAD, line, line, line, SAYS, STOPS, COUNTS)).error is None


@pytest.mark.parametrize("comment", [b": still there\n\n", SAYS])
async def test_a_stream_without_end_is_given_up(
    comment: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_LONGEST_REPLY_S", 0.2)
    result = await raw(HEAD, comment, pace_s=0.01, end=False)
    assert result.error == "the reply did not end within 0.2 s"
    assert not result.is_lost


@pytest.mark.parametrize("head", [HEAD, HEAD.replace(b"200 OK", b"500 No")])
async def test_a_reply_without_measure_is_given_up(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "_LARGEST_REPLY_BYTES", 1 << 20)
    result = await raw(head, bytes(1 << 16), end=False)
    assert result.error is not None
    assert len(result.error) <= 1000


@pytest.mark.parametrize("body", [b'{"error": {"message": "%s"}}' % (b"m" * 5000), b"[" * 10000])
async def test_what_an_endpoint_says_of_an_error_is_cut(body: bytes) -> None:
    result = await raw(HEAD.replace(b"200 OK", b"400 No"), body)
    assert result.error is not None
    assert result.error.startswith("HTTP 400: ")
    assert len(result.error) <= 1000


@pytest.mark.parametrize("value", ["1e9", "inf", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_who_asks_for_years_is_not_waited_for(engine: Any, value: str) -> None:
    engine.mishap = lambda _: 503
    engine.retry_after = value
    async with open_endpoint(engine.base_url, "fake", Gate(1)) as endpoint:
        asked = (
            run_program(
                endpoint,
                DIRECT,
                Question("q", "t", "What?", ""),
                Sampling(0, 0.0),
                program_id=f"p{index}",
                sample=0,
            )
            for index in range(3)
        )
        results = await asyncio.wait_for(asyncio.gather(*asked), timeout=5)
    assert [result.error for result in results] == ["HTTP 503: no can do"] * 3


def test_an_endpoint_that_serves_cannot_mean_years() -> None:
    now = 0.0
    gate = Gate(4, lambda: now)
    gate.refused(now, 1e9)
    assert gate.is_shut
    gate.accepted()
    assert not gate.is_shut
    assert gate.refused(now, 1.0) == 60.0


def test_an_endpoint_that_says_at_once_is_not_asked_without_pause() -> None:
    gate = Gate(4, lambda: 0.0)
    assert gate.refused(0.0, 0.0) == 1.0


def pool_of(*engines: Any) -> Pool:
    return Pool(
        engines=[
            EngineSpec(name=f"e{index}", model="fake", base_url=engine.base_url)
            for index, engine in enumerate(engines)
        ]
    )


def collect(pool: Pool, task: Any, workflow: Workflow, out: Path) -> CollectResult:
    settings = CollectSettings(limit=20, concurrency=3)
    return collect_traces(pool, task, workflow, out, settings, output=Output())


@pytest.mark.parametrize("mishap", [500, "no_usage", "cut", "drop", "data: {}", "data: [1]", 400])
def test_a_good_engine_runs_what_a_bad_one_cannot(
    two_engines: Any, task: Any, workflow: Workflow, tmp_path: Path, mishap: Any
) -> None:
    good, bad = two_engines
    good.delay_s = 0.005
    bad.mishap = lambda _: mishap
    result = collect(pool_of(bad, good), task, workflow, tmp_path)
    assert (result.programs, result.failed) == (20, 0)
    programs = read_table(tmp_path, "programs")
    assert programs["program_id"].is_unique
    assert set(programs["engine"]) == {"e1"}


def test_a_directory_that_is_removed_meanwhile_ends_the_collection(
    engine: Any, task: Any, workflow: Workflow, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def reply(body: dict[str, Any]) -> str:
        if "What is 9?" in str(body):
            shutil.rmtree(out, ignore_errors=True)
        return "accept 2"

    engine.reply = reply
    with pytest.raises(ChimeraError, match=r"journal\.jsonl was removed while it was in use"):
        collect(pool_of(engine), task, workflow, out)
    assert not out.exists()


def test_what_fails_everywhere_has_failed(
    two_engines: Any, task: Any, workflow: Workflow, tmp_path: Path
) -> None:
    for each in two_engines:
        each.mishap = lambda body: 400 if "What is 3?" in str(body) else None
    result = collect(pool_of(*two_engines), task, workflow, tmp_path)
    assert (result.programs, result.failed) == (20, 1)
    asked = [body for each in two_engines for body in each.bodies if "What is 3?" in str(body)]
    assert len(asked) == 2


def test_an_engine_that_refuses_everything_leaves_its_programs_to_others(
    two_engines: Any, task: Any, workflow: Workflow, tmp_path: Path
) -> None:
    good, bad = two_engines
    bad.mishap = lambda _: 429
    bad.retry_after = "86400"
    begin = time.monotonic()
    result = collect(pool_of(bad, good), task, workflow, tmp_path)
    assert (result.programs, result.failed) == (20, 0)
    assert time.monotonic() - begin < 10


def test_the_only_engine_that_refuses_everything_ends_the_collection(
    engine: Any, task: Any, workflow: Workflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "PATIENCE_S", 0.2)
    monkeypatch.setattr(request, "PATIENCE_S", 0.2)
    monkeypatch.setattr(gates, "_FIRST_PAUSE_S", 0.05)
    engine.mishap = lambda _: 503
    with pytest.raises(EngineError, match="Engine 'e0' refuses all requests"):
        collect(pool_of(engine), task, workflow, tmp_path)
    assert not (tmp_path / "programs.parquet").exists()

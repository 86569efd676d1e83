"""The command from start to tables: killed, gone on with, interrupted, finished; and its use."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from chimera_train.cli.main import app
from chimera_train.errors import ConfigError, DataError
from chimera_train.length.fit import fit_and_write
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.router.fit import fit_router
from chimera_train.router.settings import RouterSettings
from chimera_train.traces.store import load_traces


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), standalone_mode=False)


@pytest.fixture
def pool_file(engine, tmp_path: Path) -> Path:
    engine.reply = lambda body: "It is 42."
    path = tmp_path / "pool.yaml"
    spec = {"name": "one", "model": "fake", "base_url": engine.base_url}
    path.write_text(yaml.safe_dump({"engines": [spec]}))
    return path


@contextmanager
def recording(pool: Path, out: Path, *options: str) -> Iterator[tuple[Any, httpx2.Client]]:
    """The command as a process of its own, and a client of it."""
    command = [sys.executable, "-m", "chimera_train", "collect", "record", "--json"]
    command += ["--pool", str(pool), "--out", str(out), "--port", "0", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        line = process.stderr.readline()
        found = re.search(r"recording fake on (http://[\d.:]+/v1)", line)
        assert found, line + process.stderr.read()
        with httpx2.Client(base_url=found[1], timeout=20, verify=False) as client:
            yield process, client
    finally:
        process.kill()
        process.communicate()


def ask(client: httpx2.Client, program: str, text: str = "How many?", **fields: Any) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": text}], **fields}
    answer = client.post("chat/completions", json=body, headers={"X-Program-Id": program})
    answer.raise_for_status()


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(out / f"{table}.parquet").to_pylist()


def test_what_was_answered_survives_a_kill_and_an_interrupt_writes_the_tables(
    pool_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "recorded"
    with recording(pool_file, out) as (process, client):
        for program in ("a", "b", "a"):
            ask(client, program)
        process.send_signal(signal.SIGKILL)
    with recording(pool_file, out) as (process, client):
        assert client.post("programs/a/outcome", json={"score": 0.5}).is_success
        ask(client, "c")
        assert client.post("programs/c/end").is_success
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130
    shown = json.loads(said)
    assert (shown["programs"], shown["stages"], shown["open"]) == (2, 3, 1)
    assert {p["program_id"]: p["score"] for p in rows(out, "programs")} == {"a": 0.5, "c": None}
    provenance = json.loads((out / "provenance.json").read_text())
    assert provenance["status"] == "partial"
    assert len(provenance["runs"]) == 2

    assert invoke("collect", "record", "--finish", out).exception is None
    assert [p["program_id"] for p in rows(out, "programs")] == ["a", "b", "c"]
    assert json.loads((out / "provenance.json").read_text())["status"] == "complete"


def test_without_texts_and_with_redaction(pool_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "hashed"
    with recording(pool_file, out, "--no-text") as (_, client):
        ask(client, "a", "The secret is 7")
        ask(client, "b", "The  secret is 7")
    assert b"secret" not in (out / "journal.jsonl").read_bytes()
    invoke("collect", "record", "--finish", out)
    (question,) = rows(out, "questions")
    assert question["text"] is None
    assert question["features"]["words"]
    assert rows(out, "stages")[0]["user_features"]["words"]
    with recording(pool_file, tmp_path / "redacted", "--redact", "secret") as (_, client):
        ask(client, "a", "The secret is 7")
    assert b"secret" not in (tmp_path / "redacted" / "journal.jsonl").read_bytes()
    other = invoke("collect", "record", "--pool", pool_file, "--out", out, "--port", "0")
    assert isinstance(other.exception, ConfigError)
    assert "other settings: hash_key is None" in str(other.exception)


def test_a_recording_in_which_nothing_came_leaves_nothing(pool_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "nothing"
    with recording(pool_file, out) as (process, _):
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 143
    assert said == ""
    assert not list(out.glob("*.parquet"))
    assert not (out / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ([], ConfigError, "needs --pool and --out, or --finish alone"),
        (["--finish", "x", "--out", "y"], ConfigError, "--finish goes alone"),
        (["--finish", "absent"], DataError, "absent/journal.jsonl does not exist"),
        (["--pool", "absent.yaml", "--out", "y"], ConfigError, "absent.yaml does not exist"),
    ],
)
def test_options_that_do_not_go_together(arguments, kind, words) -> None:
    failed = invoke("collect", "record", *arguments).exception
    assert isinstance(failed, kind)
    assert words in str(failed)


def test_a_journal_of_another_collection_is_refused(tmp_path: Path) -> None:
    piece = {"program": {"program_id": "p"}, "stages": []}
    lines = [{"settings": {"task": "math"}}, piece]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    failed = invoke("collect", "record", "--finish", tmp_path).exception
    assert isinstance(failed, DataError)
    assert "journal.jsonl:2 is not what this command stores" in str(failed)


async def test_recorded_traffic_fits_a_length_predictor_and_a_router(rig, tmp_path: Path) -> None:
    async with rig() as r:
        for number in range(48):
            is_hard = number % 3 == 0
            text = f"Question {number} is {'hard' if is_hard else 'easy'} to answer"
            for engine, solves in (("one", not is_hard), ("big", number % 8 > 0)):
                r.engines[engine].tokens = ["word"] * (2 + number % 2 + 4 * is_hard)
                for stage in ("solve", "verify"):
                    named = {"X-Program-Id": f"{number}-{engine}", "X-Stage": stage}
                    await r.chat(text, model=engine, headers=named)
                await r.outcome(f"{number}-{engine}", correct=solves)
        result, _, _ = r.tables()
    assert (result.programs, result.graded, result.questions) == (96, 96, 48)
    quick = LengthSettings(n_estimators=8, min_samples_leaf=2, sketch_components=4, n_jobs=1)
    output = Output(quiet=True)
    length = fit_and_write(load_traces(r.out), tmp_path / "length", quick, output).metrics
    assert length["kendall_distance"]["overall"] < 0.4
    settings = RouterSettings(kind="tfidf_logreg")
    router = fit_router(r.out, tmp_path / "router", settings, output)
    assert router["base_rate"].keys() == {"small", "large"}

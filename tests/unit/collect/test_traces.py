"""Collecting from fake engines: what is written, resuming, failures, interruptions, bad input."""

import asyncio
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from chimera_train.collect import crew, station, traces
from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.merge import merge_collections
from chimera_train.collect.privacy import REDACTED, Privacy
from chimera_train.collect.traces import CollectResult, collect_traces
from chimera_train.errors import ChimeraError, ConfigError, EngineError
from chimera_train.files import read_json
from chimera_train.hashed_text import HashKey
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.schema import EngineSpec, Launch, Pool
from chimera_train.traces.store import load_traces, read_table
from chimera_train.workflows.model import Workflow, load_workflow

STUB = Path(__file__).parent / "stub"
# What differs from run to run; everything else must not.
TIMES = ["started_at", "program_latency_ms", "queue_ms", "start_ms", "ttft_ms", "e2e_ms"]
TABLES = ("programs", "stages", "questions")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "_PAUSE_AFTER_FAILURE_S", 0.0)
    monkeypatch.setattr(station, "_POLL_S", 0.01)


class Rig:
    """Collects with a pool, task and workflow into one directory after another."""

    def __init__(self, pool: Pool, task: Any, workflow: Workflow) -> None:
        self.pool = pool
        self.task = task
        self.workflow = workflow

    def collect(
        self,
        out: Path,
        *,
        engines: list[str] | None = None,
        privacy: Privacy | None = None,
        **settings: Any,
    ) -> CollectResult:
        return collect_traces(
            self.pool,
            self.task,
            self.workflow,
            out,
            CollectSettings(**{"limit": 6, "concurrency": 2, **settings}),
            output=Output(),
            engines=engines,
            privacy=privacy,
        )


@pytest.fixture
def rig(pool: Pool, task: Any, workflow: Workflow) -> Rig:
    return Rig(pool, task, workflow)


def tables(out: Path) -> dict[str, pd.DataFrame]:
    read = {name: read_table(out, name) for name in TABLES}
    return {name: table.drop(columns=TIMES, errors="ignore") for name, table in read.items()}


def assert_same(one: Path, other: Path) -> None:
    for name, table in tables(one).items():
        assert_frame_equal(table, tables(other)[name])


def unfolded(text: str) -> str:
    return " ".join(text.split())


def test_the_tables_hold_every_program_with_its_stages(
    rig: Rig, engine: Any, tmp_path: Path
) -> None:
    result = rig.collect(tmp_path, limit=10, samples=2, temperature=0.5)
    found = load_traces(tmp_path)
    assert result.programs == len(found.programs) == 20
    assert (result.failed, result.resumed) == (0, 0)
    assert result.stages == len(found.stages) == len(engine.bodies)
    assert result.tokens_per_s is not None
    programs = found.programs
    assert programs["program_id"].is_unique
    assert set(programs["sample"]) == {0, 1}
    assert set(programs["model"]) == {"fake"}
    assert set(programs["engine"]) == {"one"}
    assert programs["started_at"].dt.tz is not None
    for program in programs.itertuples():
        stages = found.stages[found.stages["program_id"] == program.program_id]
        assert list(stages["stage_index"]) == list(range(program.n_stages))
        assert stages["output_tokens"].sum() == program.total_output_tokens
        rejected = "reject" in stages["output_text"].iloc[1]
        assert list(stages["stage"]) == ["solve", "verify", *(["revise"] if rejected else [])]
        answer = stages["output_text"].iloc[-1 if rejected else 0]
        assert program.score == float(answer[-1] in "02468")
        assert program.correct == (program.score == 1.0)
    assert set(found.stages["queue_ms"]) == {1.5}
    assert found.stages["system_tokens"].isna().all()
    assert json.loads(found.questions["metadata"][1]) == {"level": 1}


def test_the_provenance_says_what_was_done(rig: Rig, engine: Any, tmp_path: Path) -> None:
    rig.collect(tmp_path)
    provenance = read_json(tmp_path / "provenance.json")
    assert provenance["status"] == "complete"
    assert provenance["counts"]["programs"] == 6
    assert provenance["counts"]["failed"] == 0
    assert provenance["settings"]["workflow"] == rig.workflow.model_dump(mode="json")
    (run,) = provenance["runs"]
    assert run["engines"]["one"]["engine_version"] == "0.0.fake"
    assert run["engines"]["one"]["base_url"] == engine.base_url
    assert run["started_at"] < provenance["ended_at"]


def test_texts_are_left_out_on_request(rig: Rig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rig.collect(out, texts=False)
    stages = read_table(out, "stages")
    assert stages[["system_text", "user_text", "output_text"]].isna().all(axis=None)
    assert read_table(out, "questions")["text"].isna().all()
    assert len(stages["user_features"][0]["words"]) == 3  # What is 0?
    assert len(read_table(out, "questions")["features"][0]["words"]) == 3
    journal = (out / "journal.jsonl").read_text()
    assert "so the answer" not in journal
    assert "What is 0" not in journal
    assert (tmp_path / "out.hash-key").exists()


def test_what_is_redacted_is_nowhere(rig: Rig, tmp_path: Path) -> None:
    privacy = Privacy(["answer", r"What is \d"])
    rig.collect(tmp_path, privacy=privacy)
    stages, questions = read_table(tmp_path, "stages"), read_table(tmp_path, "questions")
    assert stages["output_text"].str.contains(REDACTED, regex=False).any()
    assert not stages["output_text"].str.contains("answer").any()
    assert questions["text"][0] == f"{REDACTED}?"
    for path in tmp_path.glob("*.*"):
        assert b"What is 0" not in path.read_bytes()
    assert read_table(tmp_path, "programs")["score"].notna().all()
    with pytest.raises(ConfigError, match="redact_patterns is None, was 2"):
        rig.collect(tmp_path)


def test_concurrency_is_bounded_for_each_engine(rig: Rig, engine: Any, tmp_path: Path) -> None:
    engine.delay_s = 0.01
    rig.collect(tmp_path, limit=12, concurrency=3)
    assert engine.most_active == 3


def test_replicas_share_the_programs_of_their_model(rig: Rig, engine: Any, tmp_path: Path) -> None:
    engine.delay_s = 0.01
    specs = [
        EngineSpec(name=name, model=model, base_url=engine.base_url)
        for name, model in (("a", "fake"), ("b", "fake"), ("c", "other"))
    ]
    rig.pool = Pool(engines=specs)
    result = rig.collect(tmp_path, limit=12, concurrency=1)
    programs = read_table(tmp_path, "programs")
    assert result.programs == 24
    assert dict(programs["model"].value_counts()) == {"fake": 12, "other": 12}
    assert set(programs["engine"]) == {"a", "b", "c"}
    assert result.programs == rig.collect(tmp_path, limit=12).resumed


def test_a_complete_data_set_is_left_alone(
    rig: Rig, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.collect(tmp_path)
    sent = len(engine.bodies)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    result = rig.collect(tmp_path, concurrency=7)
    assert (result.programs, result.resumed, result.tokens_per_s) == (6, 6, None)
    assert len(engine.bodies) == sent
    assert before == {path: path.read_bytes() for path in before}
    assert "is complete: nothing to do" in unfolded(capsys.readouterr().err)


@pytest.mark.parametrize("lost", [("provenance.json",), TABLES], ids=["provenance", "all tables"])
def test_tables_that_a_kill_prevented_are_written_from_the_journal(
    rig: Rig, engine: Any, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    rig.collect(tmp_path / "whole")
    rig.collect(tmp_path / "lost")
    sent = len(engine.bodies)
    for name in lost:
        (tmp_path / "lost" / name).with_suffix(
            ".json" if name.endswith("json") else ".parquet"
        ).unlink()
    (tmp_path / "lost" / "provenance.json").unlink(missing_ok=True)
    rig.collect(tmp_path / "lost")
    assert len(engine.bodies) == sent
    assert_same(tmp_path / "whole", tmp_path / "lost")


def test_failed_programs_are_marked_and_tried_again(rig: Rig, engine: Any, tmp_path: Path) -> None:
    engine.mishap = lambda body: 400 if "What is 3?" in str(body) else None
    result = rig.collect(tmp_path / "one")
    assert (result.programs, result.failed) == (6, 1)
    programs = read_table(tmp_path / "one", "programs")
    (failed,) = programs[programs["error"].notna()].itertuples()
    assert failed.error.startswith("HTTP 400")
    assert pd.isna(failed.score)
    assert read_json(tmp_path / "one" / "provenance.json")["status"] == "partial"
    assert len(load_traces(tmp_path / "one").programs) == 5

    engine.mishap = lambda _: None
    sent = len(engine.bodies)
    result = rig.collect(tmp_path / "one")
    assert (result.programs, result.failed, result.resumed) == (6, 0, 5)
    assert {body["messages"][-1]["content"][:10] for body in engine.bodies[sent:]} == {"What is 3?"}
    rig.collect(tmp_path / "other")
    assert_same(tmp_path / "one", tmp_path / "other")


def test_when_everything_fails_it_is_an_error(rig: Rig, engine: Any, tmp_path: Path) -> None:
    engine.mishap = lambda _: 500
    with pytest.raises(ChimeraError, match=r"Every program failed.*HTTP 500"):
        rig.collect(tmp_path)
    assert read_table(tmp_path, "programs")["error"].notna().all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("stop", "concurrency", "status"),
    [
        (signal.SIGKILL, 1, -signal.SIGKILL),
        (signal.SIGKILL, 4, -signal.SIGKILL),
        (signal.SIGINT, 3, 1),
        (signal.SIGTERM, 3, 128 + signal.SIGTERM),
    ],
)
def test_an_interrupted_run_goes_on_where_it_stopped(
    rig: Rig, engine: Any, tmp_path: Path, stop: signal.Signals, concurrency: int, status: int
) -> None:
    engine.delay_s = 0.04
    out = tmp_path / "stopped"
    journal = out / "journal.jsonl"
    stderr = tmp_path / "stderr"

    def collect() -> None:
        # Whoever runs the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr = stderr.open("w")
        rig.collect(out, limit=12, concurrency=concurrency)

    # Forked, so that it need not import everything again.
    process = multiprocessing.get_context("fork").Process(target=collect)
    process.start()
    while not journal.exists() or journal.read_bytes().count(b'"program"') < 4:
        assert process.is_alive()
        time.sleep(0.002)
    os.kill(process.pid or 0, stop)
    process.join()
    assert process.exitcode == status
    stored = journal.read_bytes().count(b'"program"')
    assert stored < 12
    if stop != signal.SIGKILL:
        assert read_json(out / "provenance.json")["status"] == "partial"
        assert len(read_table(out, "programs")) == stored
        assert f"{stored} of 12 programs completed" in unfolded(stderr.read_text())

    engine.delay_s = 0.0
    result = rig.collect(out, limit=12, concurrency=concurrency)
    assert (result.programs, result.resumed) == (12, stored)
    rig.collect(tmp_path / "undisturbed", limit=12, concurrency=concurrency)
    assert_same(out, tmp_path / "undisturbed")
    assert len(read_json(out / "provenance.json")["runs"]) == 2


def dying_pool(tmp_path: Path, answers: int) -> Pool:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    env = {"PYTHONPATH": str(STUB), "STUB_ANSWERS": str(answers)}
    return Pool(engines=[EngineSpec(name="mortal", model=str(model), launch=Launch(env=env))])


def test_an_engine_that_dies_is_started_again(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.workflow = Workflow(name="direct", stages=[rig.workflow.stages[0]], answer=["solve"])
    out = tmp_path / "out"
    rig.pool = dying_pool(tmp_path, answers=7)
    result = rig.collect(out, limit=12, concurrency=1)
    assert (result.programs, result.failed) == (12, 0)
    programs = read_table(out, "programs")
    assert programs["program_id"].is_unique
    assert list(programs["attempts"]) == [1] * 7 + [2] + [1] * 4
    assert set(read_table(out, "stages")["attempt"]) == {1}
    said = unfolded(capsys.readouterr().err)
    assert "Engine 'mortal' ended by SIGKILL (out of memory?)." in said
    assert "It is started again." in said
    assert "out of imaginary memory" in (out / "logs" / "mortal.1.log").read_text()


def test_an_engine_that_does_not_stay_is_given_up(rig: Rig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rig.pool = dying_pool(tmp_path, answers=0)
    words = r"(?s)'mortal' ended by SIGKILL.*imaginary memory.*lost 4 times without finishing"
    with pytest.raises(EngineError, match=words):
        rig.collect(out, limit=12)
    assert not (out / "journal.jsonl").exists()

    rig.pool = dying_pool(tmp_path, answers=100)
    result = rig.collect(out, limit=12)
    assert (result.programs, result.failed, result.resumed) == (12, 0, 0)


def test_an_attached_engine_that_goes_away(
    rig: Rig, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.mishap = lambda _: "drop" if len(engine.bodies) > 5 else None

    monkeypatch.setattr(station, "_PATIENCE_S", 0.0)

    def gone(base_url: str, name: str, api_key: str | None) -> None:
        raise EngineError(f"Engine '{name}' cannot be reached at {base_url}")

    monkeypatch.setattr("chimera_train.collect.alive.served_models", gone)
    with pytest.raises(EngineError, match="cannot be reached"):
        rig.collect(tmp_path, concurrency=1)
    assert read_table(tmp_path, "programs")["error"].isna().all()


def test_an_attached_engine_that_comes_back_is_waited_for(
    rig: Rig, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away: list[str] = []

    def reached(base_url: str, name: str, api_key: str | None) -> None:
        if len(away) < 3:
            away.append(name)
            raise EngineError(f"Engine '{name}' cannot be reached at {base_url}")

    monkeypatch.setattr("chimera_train.collect.alive.served_models", reached)
    engine.mishap = lambda _: "cut" if len(engine.bodies) > 5 and not away else None
    result = rig.collect(tmp_path, concurrency=1)
    assert (result.programs, result.failed, len(away)) == (6, 0, 3)
    assert sorted(read_table(tmp_path, "programs")["attempts"]) == [1, 1, 1, 1, 1, 2]


def test_bad_input_starts_and_writes_nothing(rig: Rig, engine: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="no engine 'two'"):
        rig.collect(out, engines=["one", "two"])
    with pytest.raises(ConfigError, match="selection is empty: 0 engines"):
        rig.collect(out, engines=[])
    rig.task.questions = lambda limit, seed: []
    with pytest.raises(ConfigError, match="selection is empty: 1 engines, 0 questions"):
        rig.collect(out)
    assert not out.exists()
    assert engine.bodies == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"limit": 7}, "limit is 7, was 6, questions differs"),
        ({"seed": 1}, "seed is 1, was 0"),
        ({"temperature": 0.5}, "temperature is 0.5, was 0.0"),
        ({"texts": False}, "texts is False, was True"),
    ],
)
def test_a_directory_of_other_settings_is_refused(
    rig: Rig, engine: Any, tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    rig.collect(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=words):
        rig.collect(tmp_path, **change)
    assert before == {path: path.read_bytes() for path in before}


def test_a_directory_of_another_workflow_is_refused(rig: Rig, tmp_path: Path) -> None:
    rig.collect(tmp_path)
    rig.workflow = rig.workflow.model_copy(update={"answer": ["solve"]})
    with pytest.raises(ConfigError, match="workflow differs"):
        rig.collect(tmp_path)


def test_a_directory_that_cannot_be_written_is_refused(
    rig: Rig, engine: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        rig.collect(tmp_path / "file" / "out")
    assert engine.bodies == []


def test_grading_does_not_hold_up_other_streams(rig: Rig, engine: Any, tmp_path: Path) -> None:
    """Times are measured in the event loop: a slow grader must not be in it."""
    grade = rig.task.grade

    def slow(question: Any, text: str) -> float:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return grade(question, text)

    rig.task.grade = slow
    assert rig.collect(tmp_path).programs == 6


def test_rows_say_how_they_were_made(rig: Rig, engine: Any, tmp_path: Path) -> None:
    engine.thought = "let me see"
    engine.usage = {"completion_tokens_details": {"reasoning_tokens": 3}}
    values = rig.workflow.model_dump(exclude_none=True)
    values["stages"][0] |= {"fan_out": 2, "temperature": 0.7}
    values["stages"][2]["tool"] = "public_tests"
    del values["stages"][2]["max_tokens"]
    rig.workflow = Workflow.model_validate(values)
    rig.task.public_tests = lambda question, text: f"{question.text} accept"
    engine.reply = lambda _: "reject"
    rig.collect(tmp_path, limit=2, top_p=0.9)
    stages = read_table(tmp_path, "stages")
    assert list(stages["stage"]) == ["solve", "solve", "verify", "revise"] * 2
    assert list(stages["branch"].fillna(-1)) == [0, 1, -1, -1] * 2
    assert [list(after) for after in stages["after"]] == [[], [], [0, 1], [2]] * 2
    assert stages["seed"].dropna().is_unique
    tool = stages["tool"].notna()
    assert list(stages.loc[tool, "output_text"]) == ["What is 0? accept", "What is 1? accept"]
    assert set(stages.loc[tool, "output_tokens"]) == {0}
    assert set(stages.loc[~tool, "top_p"]) == {0.9}
    assert set(stages["temperature"].dropna()) == {0.7, 0.0}
    assert set(stages.loc[~tool, "reasoning_tokens"]) == {3}
    assert (stages["start_ms"] >= 0).all()
    assert len(load_traces(tmp_path).stages) == 6


def test_a_tool_that_the_task_lacks_is_refused(rig: Rig, engine: Any, tmp_path: Path) -> None:
    rig.workflow = load_workflow("code_tests")
    words = "Task 'numbers' has no public tests, which stage 'tests' of workflow 'code_tests' runs"
    with pytest.raises(ConfigError, match=words):
        rig.collect(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lost_connection_is_tried_again_from_the_first_stage(
    rig: Rig, engine: Any, tmp_path: Path
) -> None:
    cut: list[Any] = []

    def mishap(body: dict[str, Any]) -> str | None:
        is_second = body["max_tokens"] == 10 and "What is 3?" in str(body)
        if is_second and len(cut) < 2:
            cut.append(body)
            return "cut"
        return None

    engine.mishap = mishap
    assert rig.collect(tmp_path, concurrency=1).failed == 0
    assert list(read_table(tmp_path, "programs")["attempts"]) == [1, 1, 1, 3, 1, 1]
    engine.mishap = lambda _: None
    rig.collect(tmp_path.with_name("undisturbed"), concurrency=1)
    one, other = (tables(out) for out in (tmp_path, tmp_path.with_name("undisturbed")))
    assert_frame_equal(one["stages"], other["stages"])


def test_programs_of_an_engine_that_is_gone_are_run_by_another_of_its_model(
    rig: Rig, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rig.pool = Pool(
        engines=[
            *dying_pool(tmp_path, answers=2).engines,
            EngineSpec(name="other", model=str(tmp_path / "model"), base_url=engine.base_url),
        ]
    )
    engine.delay_s = 0.05

    class Broken(RunningEngine):
        def restart(self) -> None:
            raise EngineError("Engine 'mortal' has no port any more.")

    with mock.patch.object(RunningEngine, "restart", Broken.restart):
        result = rig.collect(tmp_path / "out", limit=12)
    assert (result.programs, result.failed) == (12, 0)
    assert "run by other engines of its model" in unfolded(capsys.readouterr().err)


def test_a_full_disk_keeps_what_is_finished(rig: Rig, tmp_path: Path) -> None:
    """A limit on the size of files, in a process of its own, stands in for the disk's."""
    out = tmp_path / "out"
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()

    def collect() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, 14_000))
        try:
            rig.collect(out, limit=40)
        except ChimeraError as error:
            there.send(str(error))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = context.Process(target=collect)
        process.start()
        process.join()
    assert "journal.jsonl cannot be written (File too large): what it has is kept" in here.recv()
    stored = (out / "journal.jsonl").read_bytes()
    assert len(stored) < 14_000
    assert stored.endswith(b"\n")
    n_stored = stored.count(b'"program"')
    assert len(load_traces(out).programs) == n_stored
    result = rig.collect(out, limit=40)
    assert (result.programs, result.resumed) == (40, n_stored)
    rig.collect(tmp_path / "undisturbed", limit=40)
    assert_same(out, tmp_path / "undisturbed")


def test_room_for_the_tables_is_left_on_the_disk(
    rig: Rig, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal.jsonl"

    def usage(path: Path) -> Any:
        is_full = journal.read_bytes().count(b'"program"') == 4
        return SimpleNamespace(free=5 << 20 if is_full else 5 << 40)

    monkeypatch.setattr(traces.shutil, "disk_usage", usage)
    with pytest.raises(ChimeraError, match=r"almost full \(5 MiB free\)"):
        rig.collect(tmp_path, concurrency=1)
    assert read_json(tmp_path / "provenance.json")["status"] == "partial"
    assert len(load_traces(tmp_path).programs) == 4


def test_shards_are_one_collection(rig: Rig, engine: Any, tmp_path: Path) -> None:
    rig.collect(tmp_path / "whole", limit=20, samples=2, temperature=0.5)
    shards = [tmp_path / f"shard{index}" for index in (1, 2, 3)]
    for index, out in enumerate(shards, start=1):
        rig.collect(out, limit=20, samples=2, temperature=0.5, shard=f"{index}/3")
        assert read_json(out / "provenance.json")["status"] == "complete"
    result = merge_collections(shards, tmp_path / "merged")
    assert (result.programs, result.failed, result.duplicates) == (40, 0, 0)
    assert (result.missing, result.missing_shards) == (0, ())
    assert read_json(tmp_path / "merged" / "provenance.json")["status"] == "complete"
    for name, table in tables(tmp_path / "whole").items():
        by = [column for column in ("program_id", "stage_index", "question_id") if column in table]
        merged = tables(tmp_path / "merged")[name]
        one, other = (t.sort_values(by).reset_index(drop=True) for t in (table, merged))
        assert_frame_equal(one, other)
    # The merged collection is one that can be gone on with.
    sent = len(engine.bodies)
    assert rig.collect(tmp_path / "merged", limit=20, samples=2, temperature=0.5).resumed == 40
    assert len(engine.bodies) == sent


def test_an_empty_shard_is_refused(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 questions of task 'numbers' in shard 2/9"):
        rig.collect(tmp_path / "out", limit=1, shard="2/9")


def test_shards_without_texts_need_one_key(rig: Rig, tmp_path: Path) -> None:
    key, other = HashKey(bytes(32)), HashKey(bytes(range(32)))
    shards = [tmp_path / f"shard{index}" for index in (1, 2, 3)]
    for index, out in enumerate(shards, start=1):
        privacy = Privacy(key=key if index < 3 else other)
        rig.collect(out, limit=20, shard=f"{index}/3", texts=False, privacy=privacy)
    merge_collections(shards[:2], tmp_path / "merged")
    assert read_table(tmp_path / "merged", "questions")["features"].notna().all()
    with pytest.raises(ConfigError, match="hash_key is "):
        merge_collections(shards, tmp_path / "all")

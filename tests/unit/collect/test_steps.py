"""Profiling an engine of known step times: what is kept, whatever happens, and what is refused.

What a real engine's steps look like: tests/integration.
"""

import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner

from chimera_train.cli.collect import register
from chimera_train.collect import step_load
from chimera_train.collect.steps import REGIMES, StepsResult, StepsSettings, collect_steps
from chimera_train.errors import ConfigError, DataError, EngineError
from chimera_train.files import read_json
from chimera_train.output import Output
from chimera_train.pool.schema import EngineSpec, Launch, Pool
from chimera_train.traces.store import read_table

STUB = Path(__file__).parent / "stub_steps"
# Two batch sizes, where it does not matter that there are few: the load is a third of the usual.
SMALL = {"max_num_seqs": 2}


def profile(out: Path, engine: str = "a", **launch: Any) -> None:
    specs = [
        EngineSpec(name="a", model="org/model", launch=Launch(**launch)),
        EngineSpec(name="b", model="org/model", base_url="http://127.0.0.1:9/v1"),
    ]
    collect_steps(Pool(engines=specs), engine, out, StepsSettings(), output=Output())


@pytest.mark.parametrize(
    ("engine", "launch", "words"),
    [
        ("c", {}, "no engine 'c': it has a, b"),
        ("b", {}, "'b' already runs"),
        ("a", {"args": {"scheduler-cls": "x.Y"}}, "remove launch.args.scheduler_cls"),
        ("a", {"python": "no-such-python"}, "no-such-python"),
    ],
)
def test_engines_that_cannot_be_profiled(
    tmp_path: Path, engine: str, launch: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        profile(tmp_path / "out", engine, **launch)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds another data set"):
        profile(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        profile(tmp_path / "file" / "out")


@pytest.mark.parametrize("name", ["budget_s", "precision_percent"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_settings_that_make_no_sense(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        StepsSettings(**{name: value})


class Stub:
    """An engine that only says that it worked: ``stub_steps/``."""

    def __init__(self, directory: Path) -> None:
        (directory / "config.json").write_text("{}")
        self.directory = directory
        self.out = directory / "out"
        self.args: dict[str, Any] = {}

    def control(self, **values: Any) -> None:
        (self.directory / "control.json").write_text(json.dumps(values))

    def pool(self) -> Pool:
        env = {"PYTHONPATH": str(STUB), "STUB_DIR": str(self.directory)}
        launch = Launch(args=self.args, env=env)
        return Pool(engines=[EngineSpec(name="a", model=str(self.directory), launch=launch)])

    def pool_file(self) -> Path:
        path = self.directory / "pool.yaml"
        path.write_text(yaml.safe_dump(self.pool().model_dump()))
        return path

    def collect(self, **settings: Any) -> StepsResult:
        return collect_steps(self.pool(), "a", self.out, StepsSettings(**settings), output=Output())

    def journal(self) -> list[dict[str, Any]]:
        lines = (self.out / "journal.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "batch" in line]

    def provenance(self) -> Any:
        return read_json(self.out / "provenance.json")


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path)


def test_a_steady_engine_is_known_after_the_second_visit_of_the_grid(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    result = stub.collect(budget_s=300)
    assert result.is_complete
    assert result.passes == 3
    table = read_table(stub.out, "steps")
    assert len(table) == result.steps
    assert table["step"].is_unique
    info = result.engine
    for name, regime in result.regimes.items():
        assert regime.stopped == "precise"
        assert regime.half_width_percent == pytest.approx(0, abs=1e-6)
        assert min(regime.n_prompt_lengths, regime.n_batch_sizes) >= 4
        assert regime.step_tokens is not None
        top = info.max_num_seqs if name == "decode_only" else info.max_num_batched_tokens
        assert regime.step_tokens[1] == top
    provenance = stub.provenance()
    assert provenance["status"] == "complete"
    assert provenance["counts"]["steps"] == result.steps
    assert provenance["regimes"]["mixed"]["stopped"] == "precise"
    (run,) = provenance["runs"]
    assert run["clocks_before"]["cpu"]["name"] == run["clocks_after"]["cpu"]["name"]
    assert read_json(stub.out / "engine.json") == info.model_dump()
    # The warm-up's mixed batch decodes at half the context, which no batch of the grid does.
    assert len(stub.journal()) == provenance["counts"]["batches"]
    assert "warning" not in capsys.readouterr().err

    # The same command finds nothing to do, starts no engine, and says the same.
    app = typer.Typer()
    register(app)
    where = ["--pool", str(stub.pool_file()), "--engine", "a", "--out", str(stub.out)]
    done = CliRunner().invoke(app, ["collect", "steps", *where, "--budget-s", "300", "--json"])
    assert done.exit_code == 0
    assert "nothing to do" in done.stderr
    values = json.loads(done.stdout)
    assert (values["steps"], values["passes"], values["device"]) == (result.steps, 3, "stub")
    for figure in ("regimes", "half_width_percent", "stopped", "coverage"):
        assert set(values[figure]) == set(REGIMES)
    assert values["coverage"]["decode_only"]["n_seqs"] == [1, 6]
    text = CliRunner().invoke(app, ["collect", "steps", *where, "--budget-s", "300"]).stdout
    assert "1 to 6" in text
    assert len(stub.provenance()["runs"]) == 1
    assert stub.provenance()["runs"] == provenance["runs"]


def test_an_engine_that_varies_uses_the_budget(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.control(jitter=0.5)
    result = stub.collect(budget_s=2, precision_percent=0.1)
    assert {regime.stopped for regime in result.regimes.values()} == {"budget"}
    spent_s = sum(entry["load_s"] for entry in stub.journal())
    assert 2 <= spent_s < 3
    more = stub.collect(budget_s=3, precision_percent=0.1)
    assert more.steps > result.steps
    assert len(stub.provenance()["runs"]) == 2
    assert read_table(stub.out, "steps")["step"].is_unique
    capsys.readouterr()
    stub.out = stub.directory / "short"
    assert stub.collect(budget_s=0.4, precision_percent=0.1).passes == 0
    assert "before the grid had been gone over once" in capsys.readouterr().err


def test_a_killed_profile_loses_no_batch(stub: Stub) -> None:
    stub.control(engine=SMALL)
    stderr = stub.directory / "stderr"

    def collect() -> None:
        # Whoever runs the tests in the background has it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stderr = stderr.open("w")
        stub.collect()

    for number in (signal.SIGKILL, signal.SIGINT):
        old = len(stub.journal()) if stub.out.exists() else 0
        # Forked, so that it need not import everything again.
        process = multiprocessing.get_context("fork").Process(target=collect)
        process.start()
        while not stub.out.exists() or len(stub.journal()) < old + 20:
            assert process.is_alive()
            time.sleep(0.01)
        os.kill(process.pid or 0, number)
        process.join()
        assert process.exitcode != 0
        partial = stub.out / "provenance.json"
        if number == signal.SIGKILL:
            assert not partial.exists()
            continue
        assert "holds a part of the profile" in " ".join(stderr.read_text().split())
        assert stub.provenance()["status"] == "partial"
        steps = [step for entry in stub.journal() for step in entry["steps"]]
        assert len(read_table(stub.out, "steps")) == len(steps)
        reasons = {regime["stopped"] for regime in stub.provenance()["regimes"].values()}
        assert reasons == {"interrupted"}
    before = stub.journal()
    result = stub.collect()
    assert result.is_complete
    assert stub.journal()[: len(before)] == before
    keys = [entry["batch"] for entry in stub.journal()]
    assert len(keys) == len(set(keys))


def test_an_engine_that_dies_keeps_what_was_measured_and_can_be_started_again(stub: Stub) -> None:
    stub.control(dies_after=40, engine=SMALL)
    with pytest.raises(EngineError, match=r"(?s)'a' ended by SIGKILL.*imaginary memory"):
        stub.collect()
    assert stub.provenance()["status"] == "partial"
    kept = len(stub.journal())
    assert kept > 10
    stub.control(engine=SMALL)
    assert stub.collect().is_complete
    assert len(stub.journal()) > kept


def test_a_damaged_journal_is_refused(stub: Stub) -> None:
    stub.control(dies_after=30, engine=SMALL)
    with pytest.raises(EngineError):
        stub.collect()
    path = stub.out / "journal.jsonl"
    lines = path.read_text().splitlines()
    run, batch = json.loads(lines[1]), json.loads(lines[2])
    for damaged, words in (
        ([lines[0], json.dumps({"run": {**run["run"], "plan": None}}), *lines[2:]], "follow from"),
        ([lines[0], *lines[2:]], "follow from"),
        (
            [*lines[:2], json.dumps({**batch, "steps": [[1, 2]]}), *lines[3:]],
            ":3 is not what",
        ),
        (
            [*lines[:2], json.dumps({**batch, "cell": {}}), *lines[3:]],
            ":3 is not what",
        ),
        (
            [*lines[:2], json.dumps({**batch, "load_s": "?"}), *lines[3:]],
            ":3 is not what",
        ),
    ):
        path.write_text("\n".join(damaged) + "\n")
        with pytest.raises(DataError, match=words):
            stub.collect()


def test_an_engine_that_refuses(stub: Stub) -> None:
    stub.control(refuses_after=2)
    with pytest.raises(EngineError, match=r"'a' refused a profiling request: .*no can do"):
        stub.collect()
    assert [path.name for path in stub.out.iterdir()] == ["logs"]


def test_steps_of_other_settings_or_another_engine_are_refused(stub: Stub) -> None:
    stub.control(dies_after=40, engine=SMALL)
    with pytest.raises(EngineError):
        stub.collect()
    before = {path: path.read_bytes() for path in stub.out.glob("*.*")}
    with pytest.raises(ConfigError, match="other settings: seed is 1, was 0"):
        stub.collect(seed=1)
    stub.args = {"max_num_seqs": 9}
    with pytest.raises(ConfigError, match=r"launch.args.max_num_seqs is 9, was None"):
        stub.collect()
    stub.args = {}
    stub.control(engine={**SMALL, "max_model_len": 512})
    with pytest.raises(ConfigError, match="another engine: max_model_len is 512, was 256"):
        stub.collect()
    assert {path: path.read_bytes() for path in stub.out.glob("*.*")} == before
    # How much memory was free says nothing about the steps.
    stub.control(engine={**SMALL, "num_kv_blocks": 90})
    assert stub.collect().engine.num_kv_blocks == 100


def test_a_vllm_that_was_not_tested_is_named(
    stub: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.control(engine={"vllm_version": "0.99.1", "max_num_seqs": 1})
    result = stub.collect(budget_s=300)
    assert result.regimes["mixed"].stopped == "impossible"
    assert result.is_complete
    err = capsys.readouterr().err
    assert "vLLM 0.99.1 was not tested with this tracer, only 0.32" in err
    assert "no mixed batch fits the engine" in err
    assert "decode_only batches had" in err


def test_an_engine_that_is_too_small(stub: Stub) -> None:
    stub.control(engine={"max_model_len": 40})
    with pytest.raises(ConfigError, match="too small to profile"):
        stub.collect()


def test_a_budget_in_which_a_regime_is_not_seen(stub: Stub) -> None:
    stub.control(stalls_s=0.2)
    with pytest.raises(ConfigError, match=r"No .* step was seen in time: raise --budget-s"):
        stub.collect(budget_s=0.1)
    assert not (stub.out / "steps.parquet").exists()


def test_a_clock_that_falls_is_said(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clocks = iter([2000.0, 1500.0])

    def read_clocks() -> dict[str, Any]:
        return {"gpus": [], "cpu": {"name": "x", "mhz": next(clocks), "governor": None}}

    monkeypatch.setattr(step_load, "read_clocks", read_clocks)
    stub.collect(budget_s=1)
    assert "a clock changed during the profile, mhz of the CPU from 2000 to 1500" in " ".join(
        capsys.readouterr().err.split()
    )
    assert stub.provenance()["runs"][0]["clocks_after"]["cpu"]["mhz"] == 1500.0

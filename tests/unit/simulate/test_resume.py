"""A sweep that was stopped, or whose inputs have changed, runs what is missing and nothing else."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import open_json_lines
from chimera_train.predict.length import LengthPredictor
from chimera_train.simulate import grid, sweep
from chimera_train.simulate.run_store import FILE_NAME
from chimera_train.simulate.settings import SweepSettings
from chimera_train.traces.store import read_table, write_table


@pytest.fixture
def small(config):
    """A grid of 2 rates x 2 policies x 2 seeds."""
    config["policies"] = [{"kind": "round_robin"}, {"kind": "shortest_queue"}]
    config["arrivals"]["programs"] = 10
    return config | {"seeds": 2}


@pytest.fixture
def run(write, tmp_path, monkeypatch):
    """Runs a sweep that keeps its runs; returns its result and the (cell, seed) it simulated."""
    ran = []
    simulate = sweep.simulate

    def noted(cell, seed):
        ran.append((cell.rate_per_s, cell.policy.kind, seed))
        return simulate(cell, seed)

    monkeypatch.setattr(sweep, "simulate", noted)

    def go(config, **options):
        ran.clear()
        settings = load_yaml(write(config), SweepSettings)
        return sweep.sweep(settings, keep_in=tmp_path / "out", **options), list(ran)

    return go


def test_a_finished_sweep_simulates_nothing(small, run):
    first, ran = run(small)
    assert (len(ran), first.resumed) == (8, 0)
    told = []
    again, ran = run(small, on_progress=lambda *progress: told.append(progress))
    assert (ran, again.resumed, told) == ([], 8, [(8, 8)])
    assert again.cells == first.cells
    assert again.frontier == first.frontier
    pd.testing.assert_frame_equal(again.runs, first.runs)


def test_only_what_a_change_of_the_grid_adds_is_simulated(small, run):
    run(small)
    wider = small | {
        "arrivals": small["arrivals"] | {"rates_per_s": [8, 16]},
        "policies": [{"kind": "shortest_queue"}, {"kind": "shortest_queue", "aging": 3}],
        "seeds": 3,
        "n_jobs": 1,
    }
    result, ran = run(wider)
    assert (len(result.runs), result.resumed, len(ran)) == (12, 2, 10)
    assert ran[:3] == [(8, "shortest_queue", 2), *[(8, "shortest_queue", seed) for seed in (0, 1)]]


def test_what_decides_a_run_is_part_of_its_key(
    small, run, tmp_path, step_time, write_latency, monkeypatch
):
    run(small)
    pool = tmp_path / "pool.yaml"
    pool.write_text("# another comment\n" + pool.read_text())
    assert run(small)[1] == []

    write_latency(
        tmp_path / "large.json",
        step_time(model="m-large", terms={"const": 5.5}, sharing_curve=(1.0, 1.5)),
    )
    assert len(run(small)[1]) == 8
    assert len(run(small | {"questions": "holdout"})[1]) == 8
    assert len(run(small | {"arrivals": small["arrivals"] | {"programs": 11}})[1]) == 8
    event = {"engine": "small", "kind": "down", "at_s": 1}
    assert len(run(small | {"events": [event]})[1]) == 8
    assert len(run(small | {"events": [event | {"for_s": 2}]})[1]) == 8
    assert run(small)[1] == []
    monkeypatch.setattr(grid, "_code", lambda: "another simulator")
    assert len(run(small)[1]) == 8


def test_traces_and_predictions_are_part_of_its_key(small, run, traces_dir, tmp_path, monkeypatch):
    small["policies"] = [{"kind": "shortest_queue", "order": "stjf"}]
    run(small)
    assert run(small)[1] == []
    other = tmp_path / "traces"
    shutil.copytree(traces_dir, other)
    assert run(small | {"traces": str(other)})[1] == []
    programs = read_table(other, "programs").to_dict("records")
    programs[0]["score"] = 0.5
    kept = ("program_id", "task", "question_id", "workflow", "model", "sample", "score")
    kept += ("n_stages", "total_output_tokens")
    write_table(other, "programs", [{key: row[key] for key in kept} for row in programs])
    assert len(run(small | {"traces": str(other)})[1]) == 4

    length = type(LengthPredictor.load("length", "remaining"))
    monkeypatch.setattr(
        length, "predict_with_overrun", lambda _, model, requests: np.full((2, len(requests)), 9)
    )
    assert len(run(small)[1]) == 4


def test_a_run_of_the_same_file_with_other_content_is_another(small, run, tmp_path):
    times = tmp_path / "times.csv"
    times.write_text("arrival_ms\n0\n10\n500\n")
    small["arrivals"] = {"kind": "recorded", "file": str(times)}
    result, ran = run(small)
    assert [cell["programs"] for cell in result.cells] == [3, 3]
    assert len(ran) == 4
    times.write_text("arrival_ms\n0\n10\n501\n")
    assert len(run(small)[1]) == 4


def test_a_run_that_fails_leaves_those_before_it(small, run, monkeypatch):
    simulate, left = sweep.simulate, 3

    def failing(cell, seed):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return simulate(cell, seed)

    monkeypatch.setattr(sweep, "simulate", failing)
    with pytest.raises(KeyboardInterrupt):
        run(small)
    left = 100
    assert run(small)[0].resumed == 3


def test_a_killed_sweep_goes_on_where_it_was(small, write, tmp_path):
    small |= {"seeds": 6, "length": None, "router": None}
    small["arrivals"]["programs"] = 200
    command = [sys.executable, "-m", "chimera_train", "simulate", "sweep", "--json"]
    command += ["--config", str(write(small)), "--out"]
    stored = tmp_path / "killed" / FILE_NAME
    process = subprocess.Popen([*command, str(stored.parent)], stdout=subprocess.DEVNULL)
    while not (stored.exists() and stored.stat().st_size) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (stored.parent / "cells.json").exists()
    finished = stored.read_bytes().count(b"\n")
    with stored.open("ab") as file:
        file.write(b'{"key": "half a li')

    values = {}
    for name in ("killed", "whole"):
        result = subprocess.run([*command, str(tmp_path / name)], capture_output=True, check=True)
        values[name] = json.loads(result.stdout)
    assert values["killed"].pop("resumed") == finished > 0
    assert values["whole"].pop("resumed") == 0
    assert values["killed"]["cells"] == values["whole"]["cells"]
    for name in ("runs.parquet", "cells.csv"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_two_sweeps_cannot_share_a_directory(small, run, tmp_path):
    with (
        open_json_lines(tmp_path / "out" / FILE_NAME),
        pytest.raises(ConfigError, match=r"Another process is writing into .*out: wait for it"),
    ):
        run(small)


@pytest.mark.parametrize("line", ["nonsense", '{"key": "a"}', "5"])
def test_a_damaged_file_is_refused(small, run, tmp_path, line):
    run(small)
    path = tmp_path / "out" / FILE_NAME
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(DataError, match=r"runs\.jsonl:1 is not .*restore the file or choose"):
        run(small)
    assert path.read_text().startswith(line), "nothing is lost"


def test_a_directory_that_cannot_be_written_is_refused(small, run, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(ConfigError, match=r"out cannot be written \(File exists\)"):
        run(small)

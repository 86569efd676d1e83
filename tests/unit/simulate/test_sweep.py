"""The configuration file, the grid, the files it writes, and the command."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError
from chimera_train.simulate import grid
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.metrics import FIGURES
from chimera_train.simulate.results import figures_by_cell, write_sweep
from chimera_train.simulate.settings import SweepSettings
from chimera_train.simulate.sweep import run_cell, sweep

SHIPPED = Path(__file__).parents[3] / "pipelines" / "demo" / "sweep.yaml"


MMPP = {"kind": "mmpp", "rates_per_s": [2], "programs": 5, "rate_ratio": 8}


def load(write, config):
    return load_yaml(write(config), SweepSettings)


def test_a_grid_has_one_cell_for_each_pool_rate_and_policy(config, write):
    told = []
    result = sweep(load(write, config), lambda done, total: told.append((done, total)))
    seen = [
        (cell["rate_per_s"], cell["policy"]["kind"], cell["policy"].get("tau"))
        for cell in result.cells
    ]
    policies = [("round_robin", None), *[("chimera", tau) for tau in (0.1, 0.1, "inf", "inf")]]
    assert seen == [(rate, *policy) for rate in (2, 8) for policy in policies]
    assert told == [(done, 30) for done in range(31)]
    assert len(result.runs) == 30
    assert result.warnings == []
    for index, cell in enumerate(result.cells):
        runs = result.runs[result.runs["cell"] == index]
        for figure in set(FIGURES) - {"on_time_utility", "on_time_share"}:
            assert cell[figure] == pytest.approx(runs[figure].mean())
        assert sum(cell["program_share"].values()) == pytest.approx(1.0)
    # Without regard to load everything goes to the model of which the router is surer.
    confident = [cell for cell in result.cells if cell["policy"].get("tau") == "inf"]
    assert [cell["program_share"]["large"] for cell in confident] == [1.0] * 4
    assert [cell["score"] for cell in confident] == [1.0] * 4


def test_processes_do_not_change_the_result(config, write):
    config["policies"] = [{"kind": "shortest_queue"}]
    one = sweep(load(write, config))
    two = sweep(load(write, config | {"n_jobs": 2}))
    assert one.cells == two.cells


def test_every_policy_meets_the_same_programs_under_a_seed(config, write, monkeypatch):
    met = {}

    def noted(pool, models, workload, policy, arrivals, events):
        key = (arrivals.times_ms.tobytes(), arrivals.questions.tobytes(), arrivals.luck.tobytes())
        met.setdefault(json.dumps(policy.model_dump()), []).append(key)
        return simulate_once(pool, models, workload, policy, arrivals, events)

    monkeypatch.setattr(grid, "simulate_once", noted)
    sweep(load(write, config))
    first, *others = met.values()
    streams = first[1:]  # the first run of all is the one that checks the inputs
    assert len(set(streams)) == len(streams) == 6, "rates and seeds differ"
    assert others == [streams] * 4


@pytest.mark.parametrize(
    ("arrivals", "rates", "programs"),
    [
        ({"kind": "deterministic", "rates_per_s": [2, 4], "programs": 20}, [2, 4], 20),
        ({**MMPP, "programs": 20}, [2], 20),
        ({"kind": "recorded", "file": "times.csv"}, [None], 4),
        ({"kind": "recorded", "file": "times.csv", "rates_per_s": [4, 40]}, [4, 40], 4),
        ({"kind": "recorded", "times_ms": [3, 9, 9], "programs": 2}, [None], 2),
    ],
)
def test_kinds_of_arrivals(config, write, tmp_path, monkeypatch, arrivals, rates, programs):
    (tmp_path / "times.csv").write_text("arrival_ms\n0\n100\n110\n500\n")
    monkeypatch.chdir(tmp_path)
    config["policies"] = [{"kind": "round_robin"}]
    result = sweep(load(write, config | {"arrivals": arrivals}))
    assert [cell["rate_per_s"] for cell in result.cells] == rates
    assert {cell["programs"] for cell in result.cells} == {programs}


def test_recorded_arrivals_are_rescaled_to_a_rate(config, write):
    config["policies"] = [{"kind": "round_robin"}]
    config["arrivals"] = {"kind": "recorded", "times_ms": [50, 60, 80], "rates_per_s": [10]}
    _, programs = run_cell(load(write, config | {"seeds": 1}))
    assert programs["arrival_ms"].tolist() == pytest.approx([0, 200 / 3, 200])


def test_recorded_arrivals_are_one_cell(config, write):
    config["policies"] = [{"kind": "round_robin"}]
    config["arrivals"] = {"kind": "recorded", "times_ms": [0, 10, 10, 500]}
    result, programs = run_cell(load(write, config))
    assert [cell["rate_per_s"] for cell in result.cells] == [None]
    assert programs["arrival_ms"].tolist() == [0, 10, 10, 500] * 3
    assert programs["seed"].tolist() == [seed for seed in range(3) for _ in range(4)]


def test_users_start_a_program_when_they_have_thought_about_the_last_one(config, write):
    config["policies"] = [{"kind": "round_robin"}]
    config["arrivals"] = {
        "kind": "closed_loop",
        "users": 3,
        "think_time_s": 0.05,
        "programs": 60,
    }
    result, programs = run_cell(load(write, config))
    assert [cell["rate_per_s"] for cell in result.cells] == [None]
    for _, run in programs.groupby("seed"):
        assert len(run) == 60
        ends = run["arrival_ms"] + run["program_latency_ms"]
        for arrival_ms in run["arrival_ms"]:
            under_way = (run["arrival_ms"] < arrival_ms) & (ends > arrival_ms)
            assert under_way.sum() <= 2  # the third user's begins
        # Who begins the i-th program has had an end before it.
        begins = run["arrival_ms"].sort_values().to_numpy()
        assert (begins[3:] > np.sort(ends)[:57]).all()


def test_sfs_is_measured_by_what_comes_in_time(config, write):
    config |= {
        "policies": [
            {"kind": "sfs", "ttft_target_ms": 40, "overload": ["least_late", "best_effort"]},
            {"kind": "latency_agnostic"},
            {"kind": "static_prior", "ttft_target_ms": 40},
            {"kind": "round_robin"},
        ],
        "router": "oracle",
        "length": "oracle",
        "on_time": {"ttft_target_ms": 40},
    }
    cells = sweep(load(write, config)).cells
    assert len(cells) == 5 * len({cell["rate_per_s"] for cell in cells})
    for cell in cells:
        assert 0 <= cell["on_time_utility"] <= cell["on_time_share"] <= 1
        assert cell["ci"]["on_time_share"] is not None


def test_what_is_not_simulated_is_said(config, write, step_time, tmp_path, write_latency):
    model = step_time(
        model="m-small", enable_prefix_caching=True, async_scheduling=True, sharing_curve=(1, 1.5)
    )
    write_latency(tmp_path / "small.json", model)
    config["policies"] = [{"kind": "round_robin"}]
    (warning,) = sweep(load(write, config)).warnings
    assert ": small have a prefix cache, but prompts are taken to have nothing in" in warning


def test_steps_outside_the_fitted_range_are_said(config, write, step_time, tmp_path, write_latency):
    model = step_time(model="m-small", sharing_curve=(1, 1.5), ranges={"prefill_tokens": (1, 2)})
    write_latency(tmp_path / "small.json", model)
    config["policies"] = [{"kind": "round_robin"}]
    result = sweep(load(write, config))
    (warning,) = result.warnings
    share = max(cell["extrapolated_share"]["small"] for cell in result.cells)
    assert 0.01 < share < 1
    assert f"up to {share:.0%} of the steps of 'small' are outside" in warning
    assert {cell["extrapolated_share"]["large"] for cell in result.cells} == {0.0}


def test_files(config, write, tmp_path):
    settings = load(write, config)
    result = sweep(settings)
    paths = write_sweep(result, settings, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in paths
    )
    document = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert document["cells"] == result.cells
    table = pd.read_csv(tmp_path / "out" / "cells.csv")
    assert table["utilisation.small"].tolist() == pytest.approx(
        [cell["utilisation"]["small"] for cell in result.cells]
    )
    assert table["score_ci_high"].tolist() == pytest.approx(
        [cell["ci"]["score"][1] for cell in result.cells]
    )
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "runs.parquet"), result.runs)
    assert (tmp_path / "out" / "frontier.png").read_bytes().startswith(b"\x89PNG")


def test_tracked_figures_have_names_of_their_own(config, write):
    result = sweep(load(write, config))
    named = figures_by_cell(result.cells)
    assert len(named) == len(result.cells)
    assert named["1 chimera stjf inflight τ=0.1 2 per s"] == {
        figure: result.cells[1][figure] for figure in FIGURES if figure in result.cells[1]
    }


def test_the_sweep_command(config, write, invoke, tmp_path):
    result = invoke("sweep", "--config", write(config), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert len(values["cells"]) == 10
    assert all((tmp_path / "out" / name).is_file() for name in map(str, values["files"]))
    document = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert document["frontier"] == values["frontier"]
    assert [entry["policy"]["kind"] for entry in values["frontier"][:2]] == [
        "round_robin",
        "chimera",
    ]
    assert values["frontier"][1]["against"][0]["baseline"] == 0
    text = invoke("sweep", "--config", write(config), "--quiet")
    assert "chimera stjf inflight τ=inf" in text.stdout
    assert "speed-up" in text.stdout
    assert "round_robin fcfs" in text.stdout


def test_events_befall_the_pools_that_have_the_engine(config, write, invoke, tmp_path):
    pool = yaml.safe_load((tmp_path / "pool.yaml").read_text())
    pool["engines"][0] |= {"name": "other"}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(pool))
    config["pools"] = [str(tmp_path / name) for name in ("pool.yaml", "other.yaml")]
    config["latency"]["other"] = config["latency"]["small"]
    config["arrivals"]["rates_per_s"] = [8]
    events = [
        {"engine": "small", "kind": "slow", "at_s": 0, "for_s": None, "factor": 200},
        {"engine": "small", "kind": "down", "at_s": 1, "for_s": 2},
    ]
    path = write(config | {"events": events})
    values = json.loads(invoke("sweep", "--config", path, "--out", tmp_path / "o", "--json").stdout)
    restarts = [cell["restarts"] for cell in values["cells"]]
    assert restarts[0] > 0
    assert restarts[5:] == [0.0] * 5
    stored = json.loads((tmp_path / "o" / "cells.json").read_text())
    assert stored["settings"]["events"] == events
    assert "restarts" in invoke("sweep", "--config", path).stdout
    assert "restarts" not in invoke("sweep", "--config", write(config)).stdout


def test_the_run_command_needs_a_single_cell(config, write, invoke, tmp_path):
    several = invoke("run", "--config", write(config), "--out", tmp_path / "out")
    assert isinstance(several.exception, ConfigError)
    assert not (tmp_path / "out").exists()
    config["policies"] = [{"kind": "round_robin"}]
    config["arrivals"]["rates_per_s"] = [4]
    result = invoke("run", "--config", write(config), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    assert len(pd.read_parquet(tmp_path / "out" / "programs.parquet")) == 90
    assert len(json.loads(result.stdout)["cells"]) == 1


def test_the_shipped_configuration_is_valid():
    settings = load_yaml(SHIPPED, SweepSettings)
    assert sum(len(policies) for policies in settings.policies) == 10

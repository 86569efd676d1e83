"""Other predictors beside those of a sweep, for the policies that go by them."""

import json

import pandas as pd
import pytest

from chimera_train.config import load_yaml
from chimera_train.simulate.breakdown import ablations, queue_by_order
from chimera_train.simulate.frontier import compare
from chimera_train.simulate.results import figures_by_cell, write_sweep
from chimera_train.simulate.settings import SweepSettings
from chimera_train.simulate.sweep import sweep

ORACLES = {"known length": {"length": "oracle"}, "known score": {"router": "oracle"}}
FIGURES = ("latency_per_token_ms", "score", "queue_ms")


@pytest.fixture
def settings(config, write):
    config["policies"] = [
        {"kind": "round_robin", "order": ["fcfs", "stjf"]},
        {"kind": "chimera", "tau": [0.5, 4], "delta_s": 0},
    ]
    config["ablations"] = ORACLES
    return load_yaml(write(config), SweepSettings)


def test_a_policy_is_simulated_with_what_it_goes_by(settings):
    result = sweep(settings)
    at_two = [cell for cell in result.cells if cell["rate_per_s"] == 2]
    kinds = [(cell["predictors"], cell["policy"]["kind"]) for cell in at_two]
    assert kinds == [
        ("plain", "round_robin"),
        ("plain", "round_robin"),
        ("plain", "chimera"),
        ("plain", "chimera"),
        ("known length", "round_robin"),  # by least remaining length
        ("known length", "chimera"),
        ("known length", "chimera"),
        ("known score", "chimera"),
        ("known score", "chimera"),
    ]
    assert len(figures_by_cell(result.cells)) == len(result.cells)


def test_with_its_own_predictors_a_sweep_is_as_without_ablations(settings, config, write):
    plain = load_yaml(write(config | {"ablations": {}}), SweepSettings)
    cells = sweep(plain).cells
    assert [cell for cell in sweep(settings).cells if cell["predictors"] == "plain"] == cells


def test_an_ablation_is_a_sweep_with_its_predictors(settings, config, write):
    """Under the same seeds, whatever else is simulated."""
    alone = config | {"ablations": {}, "router": "oracle"}
    cells = sweep(load_yaml(write(alone), SweepSettings)).cells
    expected = [cell for cell in cells if cell["policy"]["kind"] == "chimera"]
    found = [cell for cell in sweep(settings).cells if cell["predictors"] == "known score"]
    assert [{**cell, "predictors": "plain"} for cell in found] == expected


def test_finished_runs_are_found_under_another_name(settings, config, write, tmp_path):
    sweep(settings, keep_in=tmp_path / "out")
    config["ablations"] = {"oracle": {"length": "oracle"}, "other": {"router": "oracle"}}
    result = sweep(load_yaml(write(config), SweepSettings), keep_in=tmp_path / "out")
    assert result.resumed == len(result.runs)


def runs(*cells):
    """One row for each cell and seed; a cell is (predictors, policy, C by seed, S by seed)."""
    return pd.DataFrame(
        [
            {
                "cell": number,
                "pool": "pool.yaml",
                "predictors": predictors,
                "rate_per_s": 2.0,
                "policy": json.dumps(policy),
                "seed": seed,
                **dict(zip(FIGURES, (*figures, figures[0]), strict=True)),
            }
            for number, (predictors, policy, *by_seed) in enumerate(cells)
            for seed, figures in enumerate(zip(*by_seed, strict=True))
        ]
    )


RR = {"kind": "round_robin", "order": "stjf"}
CHIMERA = {"kind": "chimera", "order": "stjf", "load": "inflight"}


def test_an_ablation_is_compared_with_the_same_policy_within_seeds():
    (entry,) = ablations(
        runs(
            ("plain", {**CHIMERA, "tau": 1.0}, [10.0, 20.0], [0.5, 0.7]),
            ("plain", {**CHIMERA, "tau": 2.0}, [11.0, 21.0], [0.5, 0.7]),
            ("oracle", {**CHIMERA, "tau": 2.0}, [10.0, 20.0], [0.75, 0.95]),
        )
    )
    assert (entry["predictors"], entry["cell"], entry["plain_cell"]) == ("oracle", 2, 1)
    assert entry["policy"] == {**CHIMERA, "tau": 2.0}
    assert entry["latency_per_token_difference_ms"] == -1.0
    assert entry["score_difference"] == pytest.approx(0.25)
    # Within a seed the difference is always the same, although the figures are not.
    assert entry["ci"]["latency_per_token_difference_ms"] == [-1.0, -1.0]
    assert entry["ci"]["score_difference"] == pytest.approx([0.25, 0.25])


def test_frontiers_of_other_predictors_are_apart_and_no_baselines():
    entries = compare(
        runs(
            ("plain", RR, [10.0], [0.5]),
            ("plain", {**CHIMERA, "tau": 1.0}, [8.0], [0.6]),
            ("oracle", RR, [5.0], [0.5]),
            ("oracle", {**CHIMERA, "tau": 1.0}, [4.0], [0.9]),
        )
    )
    assert [(entry["predictors"], entry["cells"]) for entry in entries] == [
        ("plain", [0]),
        ("plain", [1]),
        ("oracle", [2]),
        ("oracle", [3]),
    ]
    against = [[one["baseline"] for one in entry["against"]] for entry in entries]
    assert against == [[], [0], [0], [0]]


def test_orders_of_other_predictors_are_apart():
    fcfs = {**RR, "order": "fcfs"}
    entries = queue_by_order(
        runs(
            ("plain", fcfs, [10.0], [0.5]),
            ("plain", RR, [8.0], [0.5]),
            ("oracle", RR, [5.0], [0.5]),
        )
    )
    assert [(entry["predictors"], len(entry["orders"])) for entry in entries] == [("plain", 2)]


def test_ablations_are_drawn_and_written(settings, tmp_path):
    result = sweep(settings)
    write_sweep(result, settings, tmp_path / "out")
    assert (tmp_path / "out" / "ablation.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert document["ablations"] == ablations(result.runs)
    assert len(document["ablations"]) == 10
    for name in ("frontier", "over_rates", "queue_by_order"):
        assert all(entry["predictors"] in ("plain", *ORACLES) for entry in document[name])

"""Sweeps with every order and with programs that are refused, from the file to what is written."""

import json

import numpy as np
import pytest

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError
from chimera_train.predict.ranker import Ranker
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import RoundRobin
from chimera_train.scheduling.scheduler import Scheduler
from chimera_train.simulate.settings import SweepSettings

ALL = ["fcfs", "sjf", "stjf", "stjf_oracle", "mlfq", "ltr"]


@pytest.fixture
def ranker(monkeypatch):
    class ByPrompt:
        models = ("m-small", "m-large")

        def predict(self, model, requests):
            return np.array([float(request.prompt_tokens) for request in requests])

    monkeypatch.setattr(Ranker, "load", lambda directory: ByPrompt())


def test_every_order_of_every_policy(invoke, config, write, tmp_path, ranker):
    target = {"ttft_target_ms": 1000}
    kinds = ["round_robin", "shortest_queue", "chimera", "latency_agnostic"]
    config |= {
        "length": "oracle",
        "stage_length": "oracle",
        "ranker": "ranker",
        "policies": [
            *({"kind": kind, "order": ALL} for kind in kinds),
            *({"kind": kind, "order": ALL, **target} for kind in ("static_prior", "sfs")),
        ],
        "seeds": 1,
    }
    result = invoke("sweep", "--config", write(config), "--out", tmp_path / "out", "--json")
    cells = json.loads(result.stdout)["cells"]
    assert len(cells) == 2 * 6 * len(ALL)
    assert [cell["policy"]["order"] for cell in cells] == ALL * 12
    # With oracles of both the orders by ŷ and by what is really to come are one.
    by = {
        (cell["policy"]["kind"], cell["rate_per_s"], cell["policy"]["order"]): cell
        for cell in cells
    }
    for kind in kinds:
        for rate in (2, 8):
            for figure in ("queue_ms", "latency_ms"):
                known = by[kind, rate, "stjf"][figure]
                assert by[kind, rate, "stjf_oracle"][figure] == known


def test_where_every_program_is_refused_latency_is_null(invoke, config, write, tmp_path):
    config |= {
        "policies": [
            {"kind": "sfs", "ttft_target_ms": 0.001, "overload": "shed"},
            {"kind": "shortest_queue", "order": ["fcfs", "stjf"]},
        ],
        "on_time": {"ttft_target_ms": 0.001},
    }
    result = invoke("sweep", "--config", write(config), "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out" / "cells.json").read_text())
    shed, *others = (cell for cell in document["cells"] if cell["rate_per_s"] == 8)
    zeros = ("score", "on_time_share", "on_time_utility", "preemptions")
    assert (shed["shed_share"], [shed[name] for name in zeros]) == (1.0, [0.0] * 4)
    for name in ("latency_per_token_ms", "latency_p95_ms", "ttft_ms", "queue_ms", "makespan_ms"):
        assert (shed[name], shed["ci"][name]) == (None, None)
    assert all(cell["shed_share"] == 0.0 for cell in others)
    (entry,) = (
        entry
        for entry in document["frontier"]
        if entry["policy"] == shed["policy"] and entry["rate_per_s"] == 8
    )
    assert entry["hypervolume"] == 0.0
    assert [one["speed_up"] for one in entry["against"]] == [None, None]
    assert (tmp_path / "out" / "frontier.png").is_file()
    table = invoke("sweep", "--config", write(config))
    assert table.exit_code == 0


def test_a_sweep_of_nothing_but_refusals_is_drawn(invoke, config, write, tmp_path):
    config["policies"] = [{"kind": "sfs", "ttft_target_ms": 0.001, "overload": "shed"}]
    result = invoke("sweep", "--config", write(config), "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"order": "sjf"}, "needs 'stage_length', a directory of 'fit length --target stage'"),
        ({"order": "ltr"}, "needs 'ranker', a directory of 'fit length --target rank'"),
        ({"order": "mlfq", "window": 4}, "order 'mlfq' queues inside the engine: leave out"),
    ],
)
def test_what_an_order_lacks_is_named(config, write, change, named):
    config["policies"] = [{"kind": "round_robin", **change}]
    with pytest.raises(ConfigError, match=named):
        load_yaml(write(config), SweepSettings)


@pytest.mark.parametrize("order", ["sjf", "ltr", "stjf_oracle", "mlfq"])
def test_what_only_a_simulation_can_order_is_not_served(order):
    with pytest.raises(ConfigError, match=f"The order '{order}' can be simulated only, since"):
        Scheduler([EngineProfile("e", "m", 1.0, 1)], RoundRobin(order=order))

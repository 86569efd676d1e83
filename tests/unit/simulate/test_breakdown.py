"""Orders of one policy and figures over rates, by hand; and that their plots are drawn."""

import json

import numpy as np
import pandas as pd
import pytest

from chimera_train.config import load_yaml
from chimera_train.simulate.breakdown import over_rates, queue_by_order
from chimera_train.simulate.results import write_sweep
from chimera_train.simulate.settings import SweepSettings
from chimera_train.simulate.sweep import sweep


def runs(*cells):
    """One row for each cell and seed; a cell is (kind, order, rate, queue times by seed)."""
    return pd.DataFrame(
        [
            {
                "cell": number,
                "pool": "pool.yaml",
                "predictors": "plain",
                "rate_per_s": rate_per_s,
                "policy": json.dumps({"kind": kind, "order": order}),
                "seed": seed,
                "queue_ms": queue_ms,
            }
            for number, (kind, order, rate_per_s, by_seed) in enumerate(cells)
            for seed, queue_ms in enumerate(by_seed)
        ]
    )


def test_orders_are_compared_with_first_come_first_served():
    (entry,) = queue_by_order(
        runs(
            ("shortest_queue", "stjf", 2.0, [6.0, 16.0]),
            ("shortest_queue", "fcfs", 2.0, [10.0, 20.0]),
            ("round_robin", "fcfs", 2.0, [1.0, 1.0]),
        )
    )
    assert entry["policy"] == {"kind": "shortest_queue"}
    assert entry["rate_per_s"] == 2.0
    stjf, fcfs = entry["orders"]
    assert (stjf["order"], stjf["cell"], stjf["queue_ms"]) == ("stjf", 0, 11.0)
    assert stjf["difference_ms"] == -4.0
    # Within a seed the difference is always the same, although the queue times are not.
    assert stjf["ci"]["difference_ms"] == [-4.0, -4.0]
    assert stjf["ci"]["queue_ms"][0] < 0 < 22 < stjf["ci"]["queue_ms"][1]
    assert fcfs["difference_ms"] == 0.0


def test_rates_and_policies_are_apart():
    entries = queue_by_order(
        runs(
            ("round_robin", "fcfs", 2.0, [1.0]),
            ("round_robin", "stjf", 4.0, [1.0]),
            ("shortest_queue", "fcfs", None, [1.0]),
            ("shortest_queue", "stjf", None, [3.0]),
        )
    )
    assert [(one["policy"]["kind"], one["rate_per_s"]) for one in entries] == [
        ("shortest_queue", None)
    ]
    assert entries[0]["orders"][1]["ci"]["queue_ms"] is None


def test_the_mean_over_rates_is_by_trapezoids():
    (curve,) = over_rates(
        runs(
            ("round_robin", "fcfs", 4.0, [2.0, 4.0]),
            ("round_robin", "fcfs", 1.0, [0.0, 2.0]),
            ("round_robin", "fcfs", 2.0, [2.0, 2.0]),
            ("shortest_queue", "fcfs", 2.0, [2.0, 2.0]),
        ),
        "queue_ms",
    )
    assert curve["rates_per_s"] == [1.0, 2.0, 4.0]
    assert curve["cells"] == [1, 2, 0]
    assert curve["values"] == [1.0, 2.0, 3.0]
    # Areas (1 + 4) and (2 + 6) over a width of 3.
    assert curve["auc"] == pytest.approx((5 / 3 + 8 / 3) / 2)
    assert curve["against"] == []
    low, high = curve["ci"]["auc"]
    assert (low + high) / 2 == pytest.approx(curve["auc"])


def test_the_means_over_rates_are_compared_within_seeds():
    first, second, third = over_rates(
        runs(
            ("round_robin", "fcfs", 1.0, [2.0, 4.0]),
            ("round_robin", "fcfs", 2.0, [2.0, 4.0]),
            ("chimera", "stjf", 1.0, [3.0, 5.0]),
            ("chimera", "stjf", 2.0, [3.0, 5.0]),
            ("shortest_queue", "fcfs", 1.0, [1.0, 1.0]),
            ("shortest_queue", "fcfs", 4.0, [1.0, 1.0]),  # at other rates: not comparable
        ),
        "queue_ms",
    )
    assert (first["against"], third["against"]) == ([], [])
    (against,) = second["against"]
    assert against["baseline"] == {"kind": "round_robin", "order": "fcfs"}
    assert against["auc_gain"] == 1.0
    assert against["ci"]["auc_gain"] == [1.0, 1.0]


def test_runs_without_a_rate_or_a_value_are_left_out():
    assert over_rates(runs(("round_robin", "fcfs", None, [1.0])), "queue_ms") == []
    missing = runs(("round_robin", "fcfs", 1.0, [np.nan]), ("round_robin", "fcfs", 2.0, [1.0]))
    assert over_rates(missing, "queue_ms") == []


def test_a_sweep_draws_what_it_has(config, write, tmp_path):
    config["policies"] = [{"kind": "shortest_queue", "order": ["fcfs", "stjf"]}]
    settings = load_yaml(write(config), SweepSettings)
    result = sweep(settings)
    write_sweep(result, settings, tmp_path / "out")
    for name in ("frontier.png", "utilisation.png", "queue.png", "rates.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert document["queue_by_order"] == queue_by_order(result.runs)
    assert [curve["figure"] for curve in document["over_rates"]] == [
        figure for figure in ("score", "ttft_ms", "latency_p95_ms") for _ in range(2)
    ]


def test_nothing_is_drawn_that_a_sweep_does_not_have(config, write, tmp_path):
    config["policies"] = [{"kind": "shortest_queue"}]
    config["arrivals"]["rates_per_s"] = [4]
    settings = load_yaml(write(config), SweepSettings)
    files = write_sweep(sweep(settings), settings, tmp_path / "out")
    assert not {"queue.png", "rates.png"} & {path.name for path in files}

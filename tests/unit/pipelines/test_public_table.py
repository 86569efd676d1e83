"""The tables of the public benchmark from a sweep small enough to reckon by hand."""

import json

import pytest
import table

from chimera_train.errors import DataError

RR = {"kind": "round_robin", "order": "fcfs", "aging": 16}
CHIMERA = {"kind": "chimera", "order": "stjf", "load": "inflight", "delta_s": 0.0, "aging": 16}


def cell(policy, c, s, queue_ms):
    ci = {"latency_per_token_ms": [c - 1, c + 1], "score": [s, s], "queue_ms": [queue_ms] * 2}
    figures = {"latency_per_token_ms": c, "score": s, "queue_ms": queue_ms}
    return {"policy": policy, "rate_per_s": 2.0, **figures, "ci": ci}


@pytest.fixture
def report(tmp_path):
    def write(frontier):
        cells = [
            cell(RR, 20.0, 0.5, 100.0),
            cell({**RR, "order": "stjf"}, 18.0, 0.5, 80.0),
            cell({**CHIMERA, "tau": 0.5}, 10.0, 0.5, 40.0),
            cell({**CHIMERA, "tau": 0.5, "order": "fcfs"}, 11.0, 0.5, 50.0),
        ]
        path = tmp_path / "cells.json"
        path.write_text(json.dumps({"cells": cells, "frontier": frontier}))
        return list(table.report(tmp_path))

    return write


def test_the_best_setting_is_shown_with_its_cell(report):
    def against(baseline, speed_up):
        ci = {"speed_up": [speed_up - 0.1, speed_up + 0.1], "points": None}
        return {
            "baseline": baseline, "speed_up": speed_up, "speed_up_cell": 2,
            "points": None, "points_cell": None, "ci": ci,
        }  # fmt: skip

    entry = {"rate_per_s": 2.0, "policy": CHIMERA, "against": [against(0, 2.0), against(1, 9.0)]}
    lines = report([{"rate_per_s": 2.0, "policy": RR, "against": []}, entry])
    chimera = "chimera stjf inflight tau=0.5 delta_s=0.0 aging=16"
    assert f"| 2 | {chimera} | 10.0 ± 1.0 | 0.5000 ± 0.0000 | 40.0 ± 0.0 |" in lines
    assert f"| 2 | round_robin fcfs | 2.00 [1.90, 2.10] | {chimera} | none |  |" in lines
    assert lines[-1] == "| 2 | -20 % | -20 % |"


def test_baselines_alone_are_refused(report):
    with pytest.raises(DataError, match="no policy 'chimera'"):
        report([{"rate_per_s": 2.0, "policy": RR, "against": []}])

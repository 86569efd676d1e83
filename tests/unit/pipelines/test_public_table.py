"""The tables of the public benchmark from a sweep small enough to reckon by hand."""

import json

import pytest
import table

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
        path.write_text(
            json.dumps(
                {
                    "settings": {"on_time": None, "ablations": {}},
                    "cells": cells,
                    "frontier": frontier,
                }
            )
        )
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


def test_orders_are_shown_by_queue_time_and_the_slowest():
    def of(order, queue_ms):
        ci = {"queue_ms": [queue_ms - 1, queue_ms + 1], "latency_p99_ms": [800, 1000]}
        policy = {"kind": "shortest_queue", "order": order, "aging": 64}
        figures = {"queue_ms": queue_ms, "latency_p99_ms": 900}
        return {"policy": policy, "rate_per_s": 2.0, "ci": ci, **figures}

    assert list(table.orders_report([of("fcfs", 50), of("sjf", 40)])) == [
        "| queue ms | 2/s |\n|---|---|",
        "| shortest_queue fcfs | 50.0 ± 1.0 |",
        "| shortest_queue sjf aging=64 | 40.0 ± 1.0 |",
        "",
        "| P99 of latency, ms | 2/s |\n|---|---|",
        "| shortest_queue fcfs | 900.0 ± 100.0 |",
        "| shortest_queue sjf aging=64 | 900.0 ± 100.0 |",
        "",
    ]


def test_the_mean_over_rates_is_compared_with_baselines(tmp_path):
    def of(kind, utility, rate, **more):
        ci = {"on_time_share": [utility, utility], "on_time_utility": [utility, utility]}
        policy = {"kind": kind, "order": "fcfs", **more}
        return {"policy": policy, "on_time_share": utility, "on_time_utility": utility, "ci": ci}

    def curve(number, policy, auc, against):
        return {
            "figure": "on_time_utility", "policy": policy, "cells": [number, number + 1],
            "rates_per_s": [1.0, 2.5], "auc": auc, "ci": {"auc": [auc - 0.1, auc + 0.1]},
            "against": against,
        }  # fmt: skip

    cells = [of("shortest_queue", 0.4, 1.0), of("shortest_queue", 0.2, 2.5)]
    late = {"overload": "least_late", "latency_weight_per_s": 0.0, "ttft_target_ms": "inf"}
    cells += [of("sfs", 0.5, 1.0, **late), of("sfs", 0.3, 2.5, **late)]
    gain = {"baseline": cells[0]["policy"], "auc_gain": 0.1, "ci": {"auc_gain": [0.05, 0.15]}}
    curves = [curve(0, cells[0]["policy"], 0.25, []), curve(2, cells[2]["policy"], 0.35, [gain])]
    document = {"settings": {"on_time": {}, "ablations": {}}, "cells": cells, "over_rates": curves}
    (tmp_path / "cells.json").write_text(json.dumps(document))
    lines = list(table.report(tmp_path))
    assert "| on time | 1/s | 2.5/s |" in lines[0]
    assert "| sfs fcfs least_late delta=0.0 no target | 0.500 ± 0.000 | 0.300 ± 0.000 |" in lines
    assert lines[-1].endswith("| 0.350 ± 0.100 |  | +40 % [+20, +60] |")


def test_an_ablation_is_beside_the_policy_it_changes(tmp_path):
    plain = {**cell({**CHIMERA, "tau": 0.5}, 10.0, 0.5, 40.0), "predictors": "plain"}
    oracle = {**cell({**CHIMERA, "tau": 0.5}, 9.0, 0.7, 40.0), "predictors": "oracle"}
    changes = {"latency_per_token_difference_ms": -1.0, "score_difference": 0.2}
    ci = {"latency_per_token_difference_ms": [-2.0, 0.0], "score_difference": [0.1, 0.3]}
    one = {"predictors": "oracle", "plain_cell": 0, "cell": 1, **changes, "ci": ci}
    settings = {"on_time": None, "ablations": {"oracle": {}}}
    document = {"settings": settings, "cells": [plain, oracle], "ablations": [one]}
    (tmp_path / "cells.json").write_text(json.dumps(document))
    _, first, second = table.report(tmp_path)
    assert first.endswith(" | plain | 10.0 ± 1.0 | 0.5000 ± 0.0000 |")
    assert second == "|  | oracle | -1.0 [-2.0, +0.0] | +20.0 [+10.0, +30.0] points |"

import pandas as pd
import pytest

from chimera_train.simulate.metrics import FIGURES, PER_ENGINE, OnTime, run_metrics, summarise
from chimera_train.simulate.outcome import Simulation


def test_figures_by_hand():
    simulation = Simulation(
        programs=pd.DataFrame(
            {
                "engine": ["a", "a", "b", "a"],
                "arrival_ms": [10.0, 20.0, 30.0, 40.0],
                "program_latency_ms": [100.0, 200.0, 300.0, 400.0],
                "total_output_tokens": [10, 10, 10, 100],
                "score": [1.0, 0.0, 1.0, 1.0],
            }
        ),
        requests=pd.DataFrame(
            {
                "ttft_ms": [10.0, 30.0],
                "queue_ms": [5.0, 15.0],
                "preemptions": [1, 2],
                "restarts": [0, 4],
            }
        ),
        busy_ms={"a": 215.0, "b": 0.0, "c": 430.0},
        steps={"a": 4, "b": 0, "c": 1},
        extrapolated_steps={"a": 1, "b": 0, "c": 1},
    )
    metrics = run_metrics(simulation)
    per_engine = {name: metrics.pop(name) for name in PER_ENGINE}
    assert metrics == pytest.approx(
        {
            "latency_per_token_ms": (10 + 20 + 30 + 4) / 4,
            "score": 0.75,
            "shed_share": 0,
            "latency_ms": 250,
            "latency_p50_ms": 250,
            "latency_p95_ms": 385,
            "latency_p99_ms": 397,
            "ttft_ms": 20,
            "queue_ms": 10,
            "makespan_ms": 430,
            "preemptions": 3,
            "restarts": 4,
        }
    )
    assert per_engine == {
        "utilisation": {"a": 0.5, "b": 0.0, "c": 1.0},
        "program_share": {"a": 0.75, "b": 0.25, "c": 0.0},
        "extrapolated_share": {"a": 0.25, "b": 0.0, "c": 1.0},
    }


def test_what_is_on_time_and_what_it_is_worth():
    simulation = Simulation(
        programs=pd.DataFrame(
            {
                "engine": ["a", "a", "b"],
                "arrival_ms": [0.0, 1.0, 2.0],
                "ttft_ms": [50.0, 100.0, 101.0],
                "program_latency_ms": [100.0, 200.0, 300.0],
                "total_output_tokens": [10, 10, 10],
                "cost": [100.0, 400.0, 0.0],
                "score": [1.0, 0.5, 1.0],
            }
        ),
        requests=pd.DataFrame(
            {"ttft_ms": [50.0], "queue_ms": [5.0], "preemptions": [0], "restarts": [0]}
        ),
        busy_ms={"a": 1.0, "b": 1.0},
        steps={"a": 1, "b": 1},
        extrapolated_steps={"a": 0, "b": 0},
    )
    metrics = run_metrics(simulation, OnTime(ttft_target_ms=100.0, cost_weight=0.001))
    assert metrics["on_time_share"] == pytest.approx(2 / 3)
    assert metrics["on_time_utility"] == pytest.approx((1 - 0.1 + 0.5 - 0.4) / 3)
    assert "on_time_share" not in run_metrics(simulation)


def test_means_and_t_intervals_over_seeds():
    runs = [
        dict.fromkeys(FIGURES, value) | {name: {"a": value / 10} for name in PER_ENGINE}
        for value in (1.0, 2.0, 6.0)
    ]
    cell = summarise(runs)
    assert cell["score"] == 3.0
    assert cell["utilisation"] == {"a": pytest.approx(0.3)}
    # s = sqrt(7), t(0.975, 2) = 4.302653
    half = 4.302653 * (7 / 3) ** 0.5
    assert cell["ci"]["score"] == pytest.approx([3 - half, 3 + half], rel=1e-6)
    assert summarise(runs[:1])["ci"]["score"] is None

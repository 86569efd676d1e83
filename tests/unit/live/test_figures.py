"""Figures of logs for which they are known in closed form."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from decision_rows import request, write_log

from chimera_train.live.figures import (
    length_figures,
    length_rows,
    outcome_figures,
    outcome_rows,
    service_figures,
)
from chimera_train.traces.decisions import read_decisions

Logged = Callable[..., pd.DataFrame]


def test_the_remaining_length_is_that_of_this_and_later_requests(logged: Logged) -> None:
    rows = length_rows(
        logged(
            [
                request("a", 0, 60, 10, stage="plan"),
                request("b", 1, 5, 5),
                request("a", 20, 50, 20, stage="code"),
                request("a", 10, 50, 30, stage="code"),
            ]
        )
    )
    assert rows["target_tokens"].tolist() == [60, 50, 20, 5]
    assert rows["predicted"].tolist() == [60, 50, 50, 5]


def test_programs_that_did_not_complete_have_no_length(logged: Logged) -> None:
    rows = length_rows(
        logged(
            [
                request("a", 0, 60, 10),
                request("a", 1, 60, 3, error="cancelled: the client went away"),
                request("b", 2, 60, None),
                request("c", 3, 60, 10),
            ]
        )
    )
    assert rows["program_id"].tolist() == ["c"]


@pytest.mark.parametrize(
    ("predicted", "distance"), [((1, 2, 3), 0), ((3, 2, 1), 1), ((2, 1, 3), 1 / 3)]
)
def test_distance_and_bias_by_hand(logged: Logged, predicted, distance) -> None:
    rows = [request(f"p{i}", i, 20 * y, 10 * (i + 1)) for i, y in enumerate(predicted)]
    figures = length_figures(length_rows(logged(rows)), seed=0)
    assert figures["kendall_distance"]["overall"] == pytest.approx(distance)
    assert figures["bias"]["overall"] == pytest.approx(100)  # 120 tokens instead of 60
    assert figures["bias"]["per_model"] == {"small": pytest.approx(100)}
    assert (figures["requests"], figures["programs"]) == (3, 3)
    assert "interval_coverage" not in figures  # the log has no quantiles


def test_coverage_by_hand_and_by_model(logged: Logged) -> None:
    rows = [
        request(
            f"p{i}", i, 50, i + 1, model=("small", "large")[i % 2],
            predicted_low_tokens=10.5, predicted_high_tokens=90.5,
        )
        for i in range(100)
    ]  # fmt: skip
    figures = length_figures(length_rows(logged(rows)), seed=0)
    assert figures["coverage"]["0.1"]["overall"] == pytest.approx(0.1)
    assert figures["coverage"]["0.9"]["overall"] == pytest.approx(0.9)
    assert figures["interval_coverage"]["overall"] == pytest.approx(0.8)
    assert figures["interval_coverage"]["per_model"] == {
        "large": pytest.approx(0.8),
        "small": pytest.approx(0.8),
    }


def test_without_predictions_there_are_no_lengths(logged: Logged) -> None:
    assert length_figures(length_rows(logged([request("a", 0, None, 3)])), seed=0) is None


def test_predictions_of_two_bundles_are_not_compared(tmp_path) -> None:
    # Each bundle is in perfect order, but the second one counts a hundred times as much.
    first = [request(f"a{i}", i, 100 * (9 + i), 9 + i) for i in range(9)]
    second = [request(f"b{i}", 99 + i, 30 + i, 30 + i) for i in range(9)]
    write_log(tmp_path, first, version="1")
    log = read_decisions(write_log(tmp_path, second, version="2"))
    assert sorted(set(log["bundle"])) == ["demo 1", "demo 2"]
    figures = length_figures(length_rows(log), seed=0)
    assert figures["kendall_distance"]["overall"] == 0


def test_service_by_hand(logged: Logged) -> None:
    rows = [
        request("a", 0, 9, 3, e2e_ms=100.0, overhead_ms=2.0, ttft_ms=50.0, predicted_ttft_ms=55.0),
        # Ends 250 ms after the program's start.
        request(
            "a", 150, 9, 3, e2e_ms=100.0, overhead_ms=3.0, ttft_ms=50.0, predicted_ttft_ms=40.0
        ),
        request("b", 500, 9, None, e2e_ms=0.0, overhead_ms=0.0, queue_ms=None, error="refused"),
        request(
            "c", 600, 9, None, e2e_ms=0.0, overhead_ms=None, error="cancelled: gone", fallbacks=2
        ),
    ]
    service = service_figures(logged(rows))
    assert service["overhead_share"] == pytest.approx(5 / 250)
    assert service["ttft"] == {
        "requests": 2,
        "mape": pytest.approx(15),
        "bias": pytest.approx(-5),
        "p90": pytest.approx(19),
    }
    assert service["error_share"] == 0.25
    assert service["cancelled"] == 1
    assert service["fallback_share"] == 0.25
    assert service["queue_ms"]["p99"] == 1
    assert service["errors"] == {"refused": 1, "cancelled: gone": 1}


def test_the_router_is_judged_on_what_it_chose(logged: Logged) -> None:
    q = [("one", 0.75), ("two", 0.1)]
    rows = [request(f"p{i}", i, 9, 3, q=q) for i in range(4)]
    rows += [request(f"x{i}", 9 + i, 9, 3, q=q, model=m) for i, m in enumerate(("small", "large"))]
    rows[-1]["program_id"] = "x0"  # two models worked on it
    scores = pd.Series({"p0": 1.0, "p1": 1.0, "p2": 0.0, "p3": 0.0, "x0": 0.0, "other": 0.0})
    outcomes = outcome_rows(logged(rows), scores)
    assert outcomes["confidence"].tolist() == [0.75] * 4
    figures = outcome_figures(outcomes)
    assert figures["ece"] == pytest.approx(0.25)
    assert figures["ap"] == {"small": pytest.approx(0.5)}  # no order at all: the base rate
    assert figures["base_rate"] == {"small": 0.5}
    assert outcome_figures(outcomes[:0]) is None
    assert np.isclose(figures["reliability"]["small"]["success"], 0.5).all()

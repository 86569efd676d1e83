"""Hypervolume and comparisons with baselines, against examples worked out by hand."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.simulate.frontier import compare, hypervolume, policy_label

RR = {"kind": "round_robin", "order": "fcfs"}
SQ = {"kind": "shortest_queue", "order": "fcfs"}


def chimera(tau):
    return {"kind": "chimera", "order": "stjf", "load": "inflight", "tau": tau}


def table(*cells, pool="p", rate=2.0, first=0):
    """Runs from (policy, C of each seed, S of each seed)."""
    return pd.DataFrame(
        [
            {
                "cell": number,
                "pool": pool,
                "predictors": "plain",
                "rate_per_s": rate,
                "policy": json.dumps(policy),
                "seed": seed,
                "latency_per_token_ms": c,
                "score": s,
            }
            for number, (policy, cs, ss) in enumerate(cells, start=first)
            for seed, (c, s) in enumerate(zip(cs, ss, strict=True))
        ]
    )


def test_hypervolume_by_hand():
    volume = lambda *points, reference: hypervolume(*np.array(points, float).T, reference)  # noqa: E731
    # One point covers the rectangle right of it and below it.
    assert volume((2, 0.5), reference=10) == pytest.approx(8 / 10 * 0.5)
    # Two steps: from 2 to 6 at 0.5, from 6 to 10 at 0.9, in any order.
    steps = (4 * 0.5 + 4 * 0.9) / 10
    assert volume((6, 0.9), (2, 0.5), reference=10) == pytest.approx(steps)
    # A dominated point, and one beyond the reference, add nothing.
    assert volume((6, 0.9), (7, 0.8), (2, 0.5), (11, 1.0), reference=10) == pytest.approx(steps)
    assert volume((12, 0.9), reference=10) == 0
    assert volume((0, 1.0), reference=10) == 1


@given(
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0.1, 15),
)
def test_hypervolume_is_the_integral_of_the_best_score_within_c(points, reference):
    c, s = np.array(points).T
    at = (np.arange(20_000) + 0.5) * reference / 20_000
    best = np.array([s[c <= x].max(initial=0.0) for x in at[::50]])
    assert hypervolume(c, s, reference) == pytest.approx(best.mean(), abs=0.01 + len(points) / 400)
    assert 0 <= hypervolume(c, s, reference) <= 1


def test_a_policy_against_a_baseline_by_hand():
    runs = table(
        (RR, [10, 20], [0.5, 0.6]),
        (chimera(0.5), [5, 5], [0.6, 0.7]),  # faster and better
        (chimera(2.0), [8, 14], [0.8, 0.9]),  # better still, and faster still
        (chimera("inf"), [30, 30], [0.9, 1.0]),  # best, but slower than the baseline
        (chimera(0.0), [1, 1], [0.1, 0.1]),  # fastest, but worse than the baseline
    )
    baseline, policy = compare(runs)
    assert baseline["policy"] == RR
    assert (baseline["cells"], baseline["against"]) == ([0], [])
    # The largest mean C is 30.
    assert baseline["hypervolume"] == pytest.approx(((20 * 0.5) / 30 + (10 * 0.6) / 30) / 2)

    assert policy["cells"] == [1, 2, 3, 4]
    assert policy["policy"] == {"kind": "chimera", "order": "stjf", "load": "inflight"}
    volumes = [
        (4 * 0.1 + 3 * 0.6 + 22 * 0.8) / 30,
        (4 * 0.1 + 9 * 0.7 + 16 * 0.9) / 30,
    ]
    assert policy["hypervolume"] == pytest.approx(np.mean(volumes))
    (against,) = policy["against"]
    assert (against["baseline"], against["speed_up_cell"], against["points_cell"]) == (0, 1, 2)
    assert against["speed_up"] == pytest.approx(math.sqrt(10 / 5 * 20 / 5))
    assert against["points"] == pytest.approx(30)
    assert against["ci"]["points"] == pytest.approx([30, 30]), "the same difference in both seeds"
    # t of 1 degree of freedom at 97.5 % is 12.7062; the half-width is t·sd/√2, sd = |a−b|/√2.
    half = 12.7062 * math.log(2) / 2
    middle = math.log(against["speed_up"])
    assert np.log(against["ci"]["speed_up"]) == pytest.approx([middle - half, middle + half])
    gains = [volumes[0] - 10 / 30, volumes[1] - 6 / 30]
    assert against["hypervolume_gain"] == pytest.approx(np.mean(gains))
    half = 12.7062 * abs(gains[0] - gains[1]) / 2
    assert against["ci"]["hypervolume_gain"] == pytest.approx(
        [np.mean(gains) - half, np.mean(gains) + half], rel=1e-4
    )


def test_what_is_not_reached_is_none():
    worse, slower = (chimera(1.0), [1], [0.1]), (chimera(1.0), [9], [0.9])
    (against,) = compare(table((RR, [5], [0.5]), worse))[1]["against"]
    assert (against["speed_up"], against["speed_up_cell"]) == (None, None)
    assert against["points"] == pytest.approx(-40)
    (against,) = compare(table((RR, [5], [0.5]), slower))[1]["against"]
    assert against["speed_up"] == pytest.approx(5 / 9)
    assert (against["points"], against["points_cell"]) == (None, None)
    assert against["ci"] == {"hypervolume_gain": None, "speed_up": None, "points": None}


def test_pools_and_rates_are_apart_and_baselines_meet_each_other():
    runs = pd.concat(
        [
            table((RR, [4.0], [0.5]), (SQ, [2.0], [0.5])),
            table((RR, [9.0], [0.5]), (SQ, [1.0], [0.5]), rate=None, first=2),
            table((RR, [1.0], [0.5]), pool="other", first=4),
        ],
        ignore_index=True,
    )
    entries = compare(runs)
    assert [(entry["pool"], entry["rate_per_s"], entry["cells"]) for entry in entries] == [
        ("p", 2.0, [0]),
        ("p", 2.0, [1]),
        ("p", None, [2]),
        ("p", None, [3]),
        ("other", 2.0, [4]),
    ]
    found = [[(a["baseline"], a["speed_up"]) for a in entry["against"]] for entry in entries]
    assert found == [
        [(1, pytest.approx(0.5))],
        [(0, pytest.approx(2.0))],
        [(3, pytest.approx(1 / 9))],
        [(2, pytest.approx(9.0))],
        [],
    ]


def test_labels():
    assert policy_label(chimera(0.5)) == "chimera stjf inflight τ=0.5"
    assert policy_label(RR) == "round_robin fcfs"

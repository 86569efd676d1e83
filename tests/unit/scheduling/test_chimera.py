"""Algorithm 1: a plain reference, a case by hand, and its limits."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chimera_train.scheduling.chimera import choose_engine

# Coarse values, so that ties of load and of confidence are common.
LOADS = st.one_of(st.sampled_from([0.0, 10.0, 20.0]), st.floats(0, 1e4))
CONFIDENCES = st.one_of(st.sampled_from([0.0, 0.5, 0.55, 1.0]), st.floats(0, 1))
TAUS = st.one_of(st.sampled_from([0.0, 0.5, math.inf]), st.floats(0, 100))
MARGINS = st.one_of(st.sampled_from([0.0, 0.05, math.inf]), st.floats(0, 1))


@st.composite
def pools(draw, max_engines=6):
    n = draw(st.integers(1, max_engines))
    load = np.array(draw(st.lists(LOADS, min_size=n, max_size=n)))
    confidence = np.array(draw(st.lists(CONFIDENCES, min_size=n, max_size=n)))
    up = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    up[draw(st.integers(0, n - 1))] = True
    return load, confidence, up


def reference(load, confidence, up, tau, delta_s, by_margin):
    """Algorithm 1, lines 9-22, step by step."""
    alive = [m for m in range(len(load)) if up[m]]
    in_order = sorted(alive, key=lambda m: (load[m], m))
    fast = in_order[0]
    if tau == math.inf:
        candidates = in_order[1:]
    else:
        candidates = [m for m in in_order[1:] if load[m] <= (1 + tau) * load[fast]]
    if by_margin:
        chosen, q_star = fast, confidence[fast]
        for m in candidates:
            if confidence[m] >= q_star + delta_s and confidence[m] > q_star:
                chosen, q_star = m, confidence[m]
        return chosen
    better = [
        m
        for m in candidates
        if confidence[m] >= confidence[fast] + delta_s and confidence[m] > confidence[fast]
    ]
    return max(better, key=lambda m: confidence[m]) if better else fast


@given(pools(), TAUS, MARGINS, st.booleans())
def test_equals_the_plain_reference(pool, tau, delta_s, by_margin):
    load, confidence, up = pool
    engine, upgraded = choose_engine(load, confidence, up, tau, delta_s, by_margin)
    assert engine == reference(load, confidence, up, tau, delta_s, by_margin)
    assert upgraded == (engine != reference(load, confidence, up, tau, math.inf, by_margin))


@pytest.mark.parametrize(
    ("tau", "delta_s", "by_margin", "expected"),
    [
        (0.0, 0.05, True, 0),  # nobody else is as fast
        (0.5, 0.05, True, 1),  # 150 <= 150, and 0.45 >= 0.40 + 0.05
        (1.0, 0.05, True, 1),  # 2 is within 200, but 0.48 < 0.45 + 0.05
        (1.0, 0.05, False, 2),  # 0.48 is the highest that beats 0.40 by 0.05
        (math.inf, 0.05, True, 3),  # and 0.90 >= 0.45 + 0.05
        (math.inf, 0.5, True, 3),  # 0.90 >= 0.40 + 0.50
        (math.inf, 0.6, True, 0),
    ],
)
def test_by_hand(tau, delta_s, by_margin, expected):
    load = np.array([100.0, 150.0, 190.0, 1000.0])
    confidence = np.array([0.40, 0.45, 0.48, 0.90])
    up = np.ones(4, dtype=np.bool_)
    assert choose_engine(load, confidence, up, tau, delta_s, by_margin)[0] == expected


@given(pools(), MARGINS, st.booleans())
def test_no_slack_leaves_only_ties_for_fastest(pool, delta_s, by_margin):
    load, confidence, up = pool
    engine, _ = choose_engine(load, confidence, up, 0.0, delta_s, by_margin)
    assert up[engine]
    assert load[engine] == load[up].min()


@given(pools(), st.booleans())
def test_unlimited_slack_without_margin_is_pure_confidence(pool, by_margin):
    load, confidence, up = pool
    engine, _ = choose_engine(load, confidence, up, math.inf, 0.0, by_margin)
    assert confidence[engine] == confidence[up].max()
    # Of equally confident engines the least loaded.
    assert load[engine] == load[up & (confidence == confidence[engine])].min()


@given(pools(), TAUS, st.booleans())
def test_unlimited_margin_is_always_the_fastest(pool, tau, by_margin):
    load, confidence, up = pool
    engine, upgraded = choose_engine(load, confidence, up, tau, math.inf, by_margin)
    assert not upgraded
    assert engine == np.flatnonzero(up)[np.argmin(load[up])]


@given(pools(), st.floats(0, 1), TAUS, MARGINS, st.booleans())
def test_equal_confidence_is_always_the_fastest(pool, q, tau, delta_s, by_margin):
    load, confidence, up = pool
    engine, upgraded = choose_engine(load, np.full_like(confidence, q), up, tau, delta_s, by_margin)
    assert not upgraded
    assert load[engine] == load[up].min()


@given(pools(), TAUS, MARGINS, st.booleans(), st.integers(0, 5), st.floats(0, 1e4))
def test_more_load_never_attracts(pool, tau, delta_s, by_margin, engine, extra):
    load, confidence, up = pool
    engine %= load.size
    before, _ = choose_engine(load, confidence, up, tau, delta_s, by_margin)
    assume(before != engine)
    load[engine] += extra
    assert choose_engine(load, confidence, up, tau, delta_s, by_margin)[0] != engine

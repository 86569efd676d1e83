"""Chimera's limits at the level of the scheduler: after any traffic, for the next new program."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.policy import Chimera
from chimera_train.scheduling.scheduler import Scheduler

ENGINES = [
    EngineProfile("small", "s", decode_ms_per_token=20.0, max_batch_size=4),
    EngineProfile("large", "l", decode_ms_per_token=40.0, max_batch_size=2),
    EngineProfile("other", "s", decode_ms_per_token=20.0, max_batch_size=4),
]
LENGTHS = st.lists(st.floats(0, 500), min_size=3, max_size=3)
CONFIDENCES = st.lists(st.sampled_from([0.2, 0.5, 0.55, 0.9]), min_size=3, max_size=3)
PROGRAMS = st.lists(st.tuples(LENGTHS, CONFIDENCES), min_size=1, max_size=12)
LOADS = st.sampled_from(["inflight", "inflight+self"])
UPGRADES = st.sampled_from(["margin", "argmax"])


def admit(scheduler, number, program, lengths, confidence):
    return scheduler.admit(
        Request(number, program, np.array(lengths), np.array(confidence)), now_ms=0.0
    )


def after(policy, programs):
    """A scheduler, and its decision on the last of ``programs``."""
    scheduler = Scheduler(ENGINES, policy)
    for number, (lengths, confidence) in enumerate(programs):
        decision = admit(scheduler, number, f"p{number}", lengths, confidence)
        scheduler.on_tokens(number, 17 * (number % 3))
    return scheduler, decision


@given(PROGRAMS, st.sampled_from([0.0, 0.1, math.inf]), LOADS, UPGRADES)
def test_no_slack_leaves_only_ties_for_fastest(programs, delta_s, load, upgrade):
    policy = Chimera(tau=0.0, delta_s=delta_s, load=load, upgrade=upgrade)
    _, decision = after(policy, programs)
    assert decision.load_ms[decision.engine] == decision.load_ms.min()


@given(PROGRAMS, LOADS, UPGRADES)
def test_unlimited_slack_without_margin_is_pure_confidence(programs, load, upgrade):
    policy = Chimera(tau=math.inf, delta_s=0.0, load=load, upgrade=upgrade)
    _, decision = after(policy, programs)
    confidence = programs[-1][1]
    assert confidence[decision.engine] == max(confidence)


@given(PROGRAMS, st.sampled_from([0.0, 0.5, math.inf]), LOADS, UPGRADES)
def test_unlimited_margin_is_always_the_fastest(programs, tau, load, upgrade):
    policy = Chimera(tau=tau, delta_s=math.inf, load=load, upgrade=upgrade)
    _, decision = after(policy, programs)
    assert (decision.engine, decision.reason) == (np.argmin(decision.load_ms), "fastest")


@given(
    PROGRAMS,
    st.sampled_from([0.0, 0.5, 5.0, math.inf]),
    st.sampled_from([0.0, 0.1]),
    LOADS,
    UPGRADES,
    st.data(),
)
def test_more_load_never_attracts(programs, tau, delta_s, load, upgrade, data):
    policy = Chimera(tau=tau, delta_s=delta_s, load=load, upgrade=upgrade)
    *before, (lengths, confidence) = programs
    assume(before)
    _, decision = after(policy, programs)
    # The next stage of a program that runs elsewhere turns out to be longer.
    scheduler, _ = after(policy, before)
    loaded = data.draw(st.sampled_from([f"p{i}" for i in range(len(before))]))
    engine = scheduler.engine_of(loaded)
    assume(engine != decision.engine)
    admit(scheduler, 100, loaded, [data.draw(st.floats(500, 1000))] * 3, confidence)
    assert admit(scheduler, 101, "new", lengths, confidence).engine != engine


@given(PROGRAMS, st.data())
def test_no_load_leaks(programs, data):
    scheduler, _ = after(Chimera(window=100), programs)
    for engine in range(3):
        while scheduler.pop(engine, 0.0) is not None:
            pass
    for number in data.draw(st.permutations(range(len(programs)))):
        end = data.draw(st.sampled_from([scheduler.on_complete, scheduler.on_fail]))
        end(number)
        scheduler.on_program_end(f"p{number}")
    assert scheduler.load_ms() == pytest.approx([0.0, 0.0, 0.0], abs=0)

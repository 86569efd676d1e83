"""The choice by utility against a search over all engines, and what cannot be served."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.errors import ConfigError
from chimera_train.scheduling import core, queueing
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import (
    Chimera,
    LatencyAgnostic,
    Sfs,
    StaticPrior,
    dump_policy,
    load_policy,
)
from chimera_train.scheduling.scheduler import Scheduler
from chimera_train.scheduling.sfs import most_useful, soonest
from chimera_train.scheduling.state import NOWHERE, empty_state

ENGINE = st.tuples(
    st.integers(0, 4).map(lambda q: q / 4),
    st.integers(0, 3).map(lambda cost: 100.0 * cost),
    st.one_of(st.integers(0, 5).map(float), st.just(math.inf)),
    st.booleans(),
)


@given(
    st.lists(ENGINE, min_size=1, max_size=6),
    st.sampled_from([0.0, 2.0, 4.0, math.inf]),
    st.sampled_from([0.0, 5e-4, 1e-2]),
    st.sampled_from([0.0, 0.125]),
)
def test_the_most_useful_that_begins_in_time(engines, target, cost_weight, latency_weight):
    q, cost, ttft_ms, up = (np.array(column) for column in zip(*engines, strict=True))
    chosen = most_useful(q, cost, ttft_ms, up, target, cost_weight, latency_weight)
    utility = q - cost_weight * cost
    limit = target
    if latency_weight:
        utility = utility - latency_weight * ttft_ms
        limit = min(target, np.finfo(np.float64).max)
    can = [i for i in range(len(engines)) if up[i] and ttft_ms[i] <= limit]
    assert chosen == (min(can, key=lambda i: (-utility[i], ttft_ms[i], i)) if can else -1)


@given(st.lists(ENGINE, min_size=1, max_size=6), st.data())
def test_the_soonest(engines, data):
    _, _, ttft_ms, up = (np.array(column) for column in zip(*engines, strict=True))
    up[data.draw(st.integers(0, len(engines) - 1))] = True
    expected = min((i for i in range(len(engines)) if up[i]), key=lambda i: (ttft_ms[i], i))
    assert soonest(ttft_ms, up) == expected


def views(ttft_ms):
    zeros = {name: np.zeros(1) for name in core.Views._fields}
    return core.Views(**zeros | {"ttft_ms": np.array([ttft_ms])})


def test_a_program_that_begins_late_stays_behind():
    policy = Sfs(ttft_target_ms=10.0).compiled()
    state = empty_state([1.0], [4], programs=2, requests=4)
    late, in_time = views(11.0), views(9.0)
    assert core.admit(state, policy, 0, 0, late, True)[2] == queueing.BEHIND
    assert core.admit(state, policy, 1, 1, in_time, True)[2] == 0
    core.complete(state, 0)
    assert core.admit(state, policy, 0, 2, in_time, True)[2] == queueing.BEHIND, "its next stage"
    assert [core.pop(state, policy, 0) for _ in range(3)] == [1, 2, core.NOBODY]
    core.on_program_end(state, 0)
    assert core.admit(state, policy, 0, 3, in_time, True)[2] == 0, "another program in its place"


def test_only_who_may_be_refused_is_shed():
    policy = Sfs(ttft_target_ms=10.0, overload="shed").compiled()
    state = empty_state([1.0], [4], programs=1, requests=2)
    assert core.admit(state, policy, 0, 0, views(11.0), True)[0] == NOWHERE
    assert core.admit(state, policy, 0, 0, views(11.0), False)[0] == 0, "its engine went down"
    assert core.admit(state, policy, 0, 1, views(11.0), True)[0] == 0, "its next stage"


@pytest.mark.parametrize(
    "policy",
    [
        LatencyAgnostic(),
        StaticPrior(ttft_target_ms=100),
        StaticPrior(ttft_target_ms=math.inf),
        Sfs(ttft_target_ms=math.inf, latency_weight_per_s=0.1, overload="least_late"),
        Chimera(load="sfs"),
    ],
)
def test_what_needs_the_engines_state_is_not_served(policy, tmp_path):
    with pytest.raises(ConfigError, match=f"'{policy.kind}' .* can be simulated only"):
        Scheduler([EngineProfile("e", "m", 1.0, 1)], policy)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(dump_policy(policy)))
    assert load_policy(path) == policy

"""Engines that go down or slow down, by hand; random ones are in ``test_loop``."""

import math

import numpy as np
import pandas as pd
import pytest
from hand_made import in_turn, make_pool, make_workload

from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineSpec, Pool, Price
from chimera_train.scheduling.policy import RoundRobin, Sfs, StaticPrior
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.events import Down, Slow, timeline


def down(engine, at_ms, for_ms=None):
    return Down(kind="down", engine=engine, at_s=at_ms / 1000, for_s=for_ms and for_ms / 1000)


def slow(engine, at_ms, factor, for_ms=None):
    until = for_ms and for_ms / 1000
    return Slow(kind="slow", engine=engine, at_s=at_ms / 1000, for_s=until, factor=factor)


def run(models, workload, times_ms, events, policy=None, pool=None):
    arrivals = in_turn(workload, times_ms)
    pool = pool or make_pool(*models)
    return simulate_once(pool, models, workload, policy or RoundRobin(), arrivals, events)


def test_what_an_engine_had_begins_again_elsewhere(step_time):
    # One place each, 1 s a step. b is free again at 1 s; a has one request running, one waiting.
    model = step_time(terms={"const": 1000.0}, max_num_seqs=1, max_batch_size=1)
    workload = make_workload([[[(1, 3)]], [[(1, 1)]], [[(1, 2)]], [[(1, 1)]]])
    result = run(
        dict.fromkeys("ab", model), workload, [0, 0, 500, 11_600], [down("a", 1500, 10_000)]
    )
    requests = result.requests
    assert requests["engine"].tolist() == ["b", "b", "b", "a"]
    assert requests["restarts"].tolist() == [1, 0, 1, 0]
    # b: program 1 to 1000, program 0 from its beginning to 4500, program 2 to 6500.
    assert requests["queue_ms"].tolist() == [1500, 0, 4000, 0]
    assert requests["ttft_ms"].tolist() == [2500, 1000, 5000, 1000]
    assert requests["e2e_ms"].tolist() == [4500, 1000, 6000, 1000]
    assert result.programs["total_output_tokens"].tolist() == [3, 1, 2, 1]
    # The step that was cut off counts, and time away is no busy time.
    assert (result.busy_ms, result.steps) == ({"a": 2500, "b": 6000}, {"a": 3, "b": 6})


def test_the_rest_of_a_step_changes_its_pace(step_time):
    result = run(
        {"e": step_time(terms={"const": 10.0})},
        make_workload([[[(1, 3)]]]),
        [0],
        [slow("e", 5, 2.0, for_ms=20)],
    )
    # 0-15: half of the step at half speed; 15-30: 10 of 20 ms by 25, then 5; 30-40.
    assert result.requests["ttft_ms"].tolist() == [15]
    assert result.requests["e2e_ms"].tolist() == [40]


def test_at_one_moment_steps_end_first_then_engines_change_then_programs_arrive(step_time):
    models = dict.fromkeys("ab", step_time(terms={"const": 10.0}))
    workload = make_workload([[[(1, 1)]]])

    def engines(times_ms, *events):
        return run(models, workload, times_ms, events).requests["engine"].tolist()

    assert engines([0], down("a", 0, 10)) == ["b"]
    assert engines([10], down("a", 0, 10)) == ["a"]
    assert engines([10], down("a", 0, 10), down("b", 10)) == ["a"]
    done = run(models, workload, [0], [down("a", 10)]).requests
    assert (done["engine"].tolist(), done["e2e_ms"].tolist()) == (["a"], [10])


def test_what_happens_after_the_end_changes_nothing(step_time):
    models = dict.fromkeys("ab", step_time())
    workload = make_workload([[[(5, 9)]], [[(3, 30)]]])
    times_ms = [0, 1, 2, 30]
    plain = run(models, workload, times_ms, [])
    end_ms = (plain.programs["arrival_ms"] + plain.programs["program_latency_ms"]).max()
    late = run(models, workload, times_ms, [down("a", end_ms + 1), slow("b", end_ms, 3.0)])
    pd.testing.assert_frame_equal(late.requests, plain.requests)
    pd.testing.assert_frame_equal(late.programs, plain.programs)
    assert (late.busy_ms, late.steps) == (plain.busy_ms, plain.steps)


@pytest.mark.parametrize(
    ("of_l", "tokens"),
    [([(1, 2), (1, 3), (1, 4)], [1, 3, 4]), ([(1, 2)], [1, 2])],
    ids=["the same stage", "the last stage"],
)
def test_a_program_that_lost_its_engine_goes_on_with_what_another_model_did(
    step_time, of_l, tokens
):
    # It has its first stage on a, whose model s does three; a tool runs when a goes down.
    workload = make_workload(
        [[[(1, 1), (1, 1), (1, 1)], of_l]],
        models=("s", "l"),
        tool_ms=[0, 50, 50, *[0] * len(of_l)],
    )
    price = Price(input_usd_per_m=0, output_usd_per_m=1)
    engines = [
        EngineSpec(name="a", model="s", base_url="http://x/v1"),
        EngineSpec(name="b", model="l", base_url="http://x/v1", price=price),
    ]
    models = {"a": step_time(model="s"), "b": step_time(model="l")}
    result = run(models, workload, [0], [down("a", 30)], pool=Pool(engines=engines))
    requests = result.requests
    assert requests["engine"].tolist() == ["a", *["b"] * len(tokens[1:])]
    assert requests["stage_index"].tolist() == list(range(len(tokens)))
    assert requests["output_tokens"].tolist() == tokens
    assert requests["restarts"].sum() == 0
    (program,) = result.programs.to_dict("records")
    assert program["engine"] == "b"
    assert program["trajectory"] == "q0-l"
    assert program["score"] == workload.score[1]
    assert program["n_stages"] == len(tokens)
    assert program["total_output_tokens"] == sum(tokens)
    assert program["cost"] == sum(tokens[1:])
    assert program["program_latency_ms"] == 10 + 50 + 10 * sum(tokens[1:])


def test_who_shares_a_device_with_an_engine_that_goes_down_is_faster(step_time):
    model = step_time(terms={"const": 10.0}, sharing_curve=(1.0, 2.0))
    result = run(
        dict.fromkeys("ab", model),
        make_workload([[[(1, 3)]]]),
        [0, 0],
        [down("a", 10)],
        pool=make_pool(*"ab", device_group="gpu"),
    )
    # b's step is half done at 10 and ends at 15; the next has the other request in it too.
    assert result.requests["e2e_ms"].tolist() == [45, 35]
    assert result.busy_ms == {"a": 10, "b": 45}


def test_estimates_know_the_pace_of_the_moment_and_a_prior_does_not(step_time):
    models = {"a": step_time(terms={"const": 10.0}), "b": step_time(terms={"const": 12.0})}
    workload = make_workload([[[(1, 3)]]])
    for policy, expected in ((Sfs, "b"), (StaticPrior, "a")):
        chosen = run(models, workload, [5], [slow("a", 0, 3.0)], policy(ttft_target_ms=15.0))
        assert chosen.requests["engine"].tolist() == [expected]


def test_an_engine_that_comes_back_remembers_nothing(step_time):
    # Three blocks: at 150 ms they hold what was computed of three requests.
    model = step_time(
        terms={"const": 10.0, "prefill_tokens": 1.0},
        num_kv_blocks=4,
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    models = dict.fromkeys("ab", model)
    workload = make_workload([[[(10, 20)]]])
    fresh = run(models, workload, [0, 0, 0], [down("b", 0)])
    assert fresh.requests["preemptions"].sum() > 0
    events = [down("b", 0, 150), down("a", 150, 10), down("b", 160)]
    again = run(models, workload, [0, 0, 0], events)
    for requests, restarts in ((fresh.requests, 0), (again.requests, 2)):
        assert requests["engine"].tolist() == ["a"] * 3
        assert requests["restarts"].tolist() == [restarts] * 3
    assert (again.requests["e2e_ms"] - 160).tolist() == fresh.requests["e2e_ms"].tolist()
    assert again.requests["preemptions"].tolist() == fresh.requests["preemptions"].tolist()


def test_changes_are_in_order_and_ends_come_before_beginnings():
    found = timeline(
        [slow("b", 20, 3.0), down("b", 10, 10), slow("b", 10, 2.0, for_ms=10), down("a", 20)],
        ["a", "b"],
    )
    # kinds: 0 up, 1 pace, 2 down
    assert found.at_ms.tolist() == [10, 10, 20, 20, 20, 20, math.inf]
    assert found.engine.tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert found.kind.tolist() == [2, 1, 0, 1, 1, 2, 0]
    assert found.factor.tolist() == [1, 2, 1, 1, 3, 1, 1]


def test_what_is_too_short_to_have_an_end_does_not_begin():
    assert timeline([down("a", 1000, 1e-20)], ["a"]).at_ms.tolist() == [math.inf]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([down("c", 0)], r"'c' is none of the pool's engines \(a, b\)\."),
        ([down("a", 10), down("b", 2000, 5)], r"no engine of a, b would be up at 2 s, .*leave one"),
    ],
)
def test_what_cannot_happen_to_a_pool_is_refused(step_time, events, words):
    models = dict.fromkeys("ab", step_time())
    with pytest.raises(ConfigError, match=words):
        run(models, make_workload([[[(1, 1)]]]), np.zeros(1), events)

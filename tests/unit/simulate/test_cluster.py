"""Whole simulations against queueing theory, hand-made cases and conservation laws."""

import math

import numpy as np
import pandas as pd
import pytest
from hand_made import in_turn, make_pool, make_workload
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from chimera_train.errors import ConfigError, DataError
from chimera_train.pool.schema import EngineSpec, Pool, Price
from chimera_train.scheduling.policy import (
    Chimera,
    LatencyAgnostic,
    RoundRobin,
    Sfs,
    ShortestQueue,
    StaticPrior,
)
from chimera_train.simulate.arrivals import poisson, recorded
from chimera_train.simulate.cluster import simulate_once


def waits(step_time, workload, *, rate_per_s, seeds, programs, step_ms):
    """Mean wait before service at one engine that serves one program at a time, per seed."""
    models = {"e": step_time(terms={"const": step_ms}, max_num_seqs=1, max_batch_size=1)}
    return [
        simulate_once(
            make_pool("e"),
            models,
            workload,
            RoundRobin(),
            poisson(workload, rate_per_s=rate_per_s, programs=programs, seed=seed),
        )
        .requests["queue_ms"]
        .mean()
        for seed in range(seeds)
    ]


def confidence_interval(values, level=0.99):
    return stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_constant_service_is_m_d_1(step_time, load):
    workload = make_workload([[[(1, 5)]]])  # 5 steps of 4 ms
    found = waits(
        step_time, workload, rate_per_s=1000 * load / 20, seeds=10, programs=1000, step_ms=4.0
    )
    low, high = confidence_interval(found)
    assert low < load * 20 / (2 * (1 - load)) < high
    assert high - low < 0.5 * np.mean(found)


def test_exponential_service_is_m_m_1(step_time):
    rng = np.random.default_rng(0)
    # Mean 100 steps: nearly continuous. Every program has a question of its own.
    lengths = rng.geometric(0.01, size=4000)
    workload = make_workload([[[(1, int(n))]] for n in lengths], remaining=np.zeros(4000))
    load = 0.4
    found = waits(
        step_time, workload, rate_per_s=1000 * load / 100, seeds=10, programs=1500, step_ms=1.0
    )
    low, high = confidence_interval(found)
    assert low < load * 100 / (1 - load) < high
    assert high - low < 0.5 * np.mean(found)


@pytest.mark.parametrize(
    "lengths", [[400], [100] * 9 + [3100]], ids=["constant", "nine in ten short"]
)
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_step_as_long_as_its_batch_is_m_g_1_processor_sharing(step_time, lengths, load):
    # A token costs the same alone or in a batch: n running requests have 1/n of the engine each.
    # Mean latency depends on the lengths' mean alone. Many short steps: nearly continuous.
    model = step_time(
        terms={"const": 0.0, "prefill_tokens": 0.25, "decode_tokens": 0.25},
        max_num_seqs=256,
        max_batch_size=256,
        max_num_batched_tokens=256,
        num_kv_blocks=50_000,
    )
    workload = make_workload([[[(1, n)]] for n in lengths])
    service_ms = 0.25 * np.mean(lengths)
    found = [
        simulate_once(
            make_pool("e"),
            {"e": model},
            workload,
            RoundRobin(),
            poisson(workload, rate_per_s=1000 * load / service_ms, programs=3000, seed=seed),
        )
        .programs["program_latency_ms"]
        .mean()
        for seed in range(20)
    ]
    low, high = confidence_interval(found)
    assert low < service_ms / (1 - load) < high
    assert high - low < 0.2 * np.mean(found)


def test_a_batch_by_hand(step_time):
    # const 10, prefill 1 per token, decode 2 per token; two places.
    terms = {"const": 10.0, "prefill_tokens": 1.0, "decode_tokens": 2.0}
    models = {"e": step_time(terms=terms, max_num_seqs=2, max_batch_size=2)}
    workload = make_workload([[[(5, 2), (3, 1)]], [[(4, 3)]], [[(6, 1)]]])
    result = simulate_once(
        make_pool("e"), models, workload, RoundRobin(), in_turn(workload, [0, 1, 2])
    )
    #  0-15: prefill 0 (5 tokens)            15-31: decode 0, prefill 1 (4); 0's first stage is done
    # 31-43: decode 1                        43-61: decode 1, prefill 2 (6); both are done
    # 61-74: prefill of 0's second stage (3): program 2 waited longer for the place
    requests = result.requests.sort_values(["program", "stage_index"])
    assert requests["queue_ms"].tolist() == [0, 61 - 31, 15 - 1, 43 - 2]
    assert requests["ttft_ms"].tolist() == [15, 74 - 31, 31 - 1, 61 - 2]
    assert requests["e2e_ms"].tolist() == [31, 74 - 31, 61 - 1, 61 - 2]
    assert result.programs["program_latency_ms"].tolist() == [74, 60, 59]
    assert result.programs["total_output_tokens"].tolist() == [3, 3, 1]
    assert (result.busy_ms, result.steps) == ({"e": 74.0}, {"e": 5})


def test_engines_of_one_device_slow_each_other_down(step_time):
    # A curve may be longer than the group: it was measured with a third engine.
    model = step_time(terms={"const": 10.0}, sharing_curve=(1.0, 1.5, 1.9))
    workload = make_workload([[[(1, 3)]]])
    for group, expected in ((None, [30, 30]), ("gpu", [42.5, 42.5])):
        result = simulate_once(
            make_pool(*"ab", device_group=group),
            dict.fromkeys("ab", model),
            workload,
            RoundRobin(),
            in_turn(workload, [0, 5]),
        )
        # a: 5 ms alone, then 25 ms of work at 1/1.5 until 42.5; b: 25 ms of work by then, and 5.
        assert result.programs["program_latency_ms"].tolist() == expected


def test_an_engine_that_is_alone_in_its_group_needs_no_curve(step_time):
    workload = make_workload([[[(1, 3)]]])
    result = simulate_once(
        make_pool("e", device_group="gpu"),
        {"e": step_time(terms={"const": 10.0})},
        workload,
        RoundRobin(),
        in_turn(workload, [0]),
    )
    assert result.programs["program_latency_ms"].tolist() == [30]


PROGRAMS = st.lists(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 15)), min_size=1, max_size=3),
    min_size=2,
    max_size=12,
)
POLICIES = st.one_of(
    st.builds(
        Chimera,
        tau=st.sampled_from([0.0, 0.5, math.inf]),
        load=st.sampled_from(["inflight", "inflight+self"]),
        aging=st.integers(0, 4),
        window=st.sampled_from([None, 1, 9]),
    ),
    st.builds(ShortestQueue, order=st.sampled_from(["fcfs", "stjf"])),
    st.builds(RoundRobin, order=st.sampled_from(["fcfs", "stjf"])),
)
GAPS = st.lists(st.floats(0, 40), min_size=12, max_size=12)


def make_models(step_time, sharing_curve=()):
    common = {
        "sharing_curve": sharing_curve,
        "num_kv_blocks": 5,
        "max_num_batched_tokens": 12,
        "max_model_len": 60,
    }
    return {
        "small": step_time(
            model="s", terms={"const": 3.0, "decode_tokens": 0.2}, decode_ms_per_token=4, **common
        ),
        "large": step_time(
            model="l", terms={"const": 7.0, "prefill_attn": 0.02}, decode_ms_per_token=8, **common
        ),
    }


def two_models(programs, data):
    half = len(programs) // 2
    rows = [list(pair) for pair in zip(programs[:half], programs[half : 2 * half], strict=True)]
    q = data.draw(st.lists(st.floats(0, 1), min_size=2 * half, max_size=2 * half))
    return make_workload(rows, models=("s", "l"), confidence=np.reshape(q, (half, 2)))


APART, TOGETHER = (
    Pool(
        engines=[
            EngineSpec(name="small", model="s", device_group=group, base_url="http://x/v1"),
            EngineSpec(name="large", model="l", device_group=group, base_url="http://x/v1"),
        ]
    )
    for group in (None, "gpu")
)


@settings(max_examples=40)
@given(PROGRAMS, GAPS, POLICIES, st.data())
def test_running_ahead_is_the_same_as_step_by_step(step_time, programs, gaps, policy, data):
    workload = two_models(programs, data)
    arrivals = in_turn(workload, np.cumsum(gaps))
    # A sharing curve without slow-down changes nothing but forbids engines to run ahead.
    ahead, stepwise = (
        simulate_once(pool, make_models(step_time, (1.0, 1.0)), workload, policy, arrivals)
        for pool in (APART, TOGETHER)
    )
    pd.testing.assert_frame_equal(ahead.programs, stepwise.programs)
    pd.testing.assert_frame_equal(ahead.requests, stepwise.requests)
    assert ahead.steps == stepwise.steps


@settings(max_examples=40)
@given(PROGRAMS, GAPS, POLICIES, st.sampled_from([APART, TOGETHER]), st.data())
def test_every_program_is_served_once_by_one_engine(step_time, programs, gaps, policy, pool, data):
    workload = two_models(programs, data)
    arrivals = in_turn(workload, np.cumsum(gaps))
    result = simulate_once(pool, make_models(step_time, (1.0, 1.7)), workload, policy, arrivals)
    requests = result.requests.to_dict("records")
    assert len(result.programs) == len(gaps)
    for number, program in enumerate(result.programs.to_dict("records")):
        row = workload.program_ids.index(program["trajectory"])
        stages = slice(*workload.first_stage[row : row + 2])
        mine = [request for request in requests if request["program"] == number]
        assert [r["stage_index"] for r in mine] == list(range(program["n_stages"]))
        assert [r["output_tokens"] for r in mine] == workload.output_tokens[stages].tolist()
        assert {r["engine"] for r in mine} == {program["engine"]}
        assert program["trajectory"].endswith("-s" if program["engine"] == "small" else "-l")
        assert program["score"] == workload.score[row]
        # A stage arrives when its predecessor completes, and its time is all accounted for.
        now = program["arrival_ms"]
        for r in mine:
            assert r["arrival_ms"] == pytest.approx(now)
            assert 0 <= r["queue_ms"] < r["ttft_ms"] <= r["e2e_ms"]
            now += r["e2e_ms"]
        assert program["program_latency_ms"] == pytest.approx(now - program["arrival_ms"])


def test_shortest_total_job_first_serves_short_programs_first(step_time):
    models = {"e": step_time(terms={"const": 1.0}, max_num_seqs=1, max_batch_size=1)}
    workload = make_workload([[[(1, 9)]], [[(1, 7)]], [[(1, 2)]], [[(1, 5)]]])
    arrivals = in_turn(workload, [0, 1, 2, 3])
    ends = {}
    for order in ("fcfs", "stjf"):
        result = simulate_once(make_pool("e"), models, workload, RoundRobin(order=order), arrivals)
        ends[order] = (
            result.programs["arrival_ms"] + result.programs["program_latency_ms"]
        ).tolist()
    assert ends == {"fcfs": [9, 16, 18, 23], "stjf": [9, 23, 11, 16]}


def test_the_load_follows_the_tokens_that_streamed(step_time):
    # Both engines have work for 10 tokens; when program 2 arrives, a has streamed 5 of them and b,
    # five times slower, 1: a is the faster engine, and was not by the loads at admission.
    models = {
        "a": step_time(terms={"const": 1.0}, decode_ms_per_token=4.0),
        "b": step_time(terms={"const": 5.0}, decode_ms_per_token=3.9),
    }
    workload = make_workload([[[(1, 10)]]])
    policy = Chimera(tau=0.0, load="inflight")
    result = simulate_once(
        make_pool("a", "b"), models, workload, policy, in_turn(workload, [0, 0.5, 5.5])
    )
    assert result.programs["engine"].tolist() == ["a", "b", "a"]


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_sfs_knows_when_a_request_would_begin(step_time, is_async, prefix_cache):
    # The last program's estimate is exact, since nobody comes after it: with 0.01 ms more it goes
    # to the stronger engine, and with 0.01 ms less to the other one.
    rng = np.random.default_rng(0)
    programs = [[[(int(p), int(o))]] * 2 for p, o in rng.integers(1, 40, (12, 2))]
    workload = make_workload(programs, models=("s", "l"), confidence=[[0.1, 0.9]] * 12)
    limits = {"num_kv_blocks": 13, "async_scheduling": is_async, "max_batch_size": 4}
    limits["enable_prefix_caching"] = prefix_cache
    models = {
        "weak": step_time(model="s", terms={"const": 1.0}),
        "strong": step_time(model="l", terms={"const": 3.0, "decode_tokens": 0.4}, **limits),
    }
    pool = Pool(
        engines=[
            EngineSpec(name="weak", model="s", base_url="http://x/v1"),
            EngineSpec(name="strong", model="l", base_url="http://x/v1"),
        ]
    )
    arrivals = in_turn(workload, np.cumsum(rng.exponential(9.0, 12)))

    def run(ttft_target_ms):
        policy = Sfs(ttft_target_ms=ttft_target_ms, window=50, overload="least_late")
        return simulate_once(pool, models, workload, policy, arrivals).programs

    everyone = run(math.inf)
    assert set(everyone["engine"]) == {"strong"}
    ttft_ms = everyone["ttft_ms"].iloc[-1]
    assert ttft_ms > everyone["ttft_ms"].iloc[:-1].max() + 0.01
    assert run(ttft_ms + 0.01)["engine"].iloc[-1] == "strong"
    assert run(ttft_ms - 0.01)["engine"].iloc[-1] == "weak"


def test_what_is_late_is_served_behind_what_is_not(step_time):
    # One place: the first runs 90 ms, the second can only be late, the third comes much later.
    workload = make_workload([[[(1, 9)]], [[(1, 9)]], [[(1, 2)]]])
    models = {"e": step_time(terms={"const": 10.0}, max_num_seqs=1)}
    ends = {}
    for overload in ("best_effort", "least_late"):
        policy = Sfs(ttft_target_ms=75.0, overload=overload, window=10)
        programs = simulate_once(
            make_pool("e"), models, workload, policy, in_turn(workload, [0, 1, 30])
        ).programs
        ends[overload] = (programs["arrival_ms"] + programs["program_latency_ms"]).tolist()
    # The third would begin at 90 behind the first, 60 after it arrived: it goes before the second.
    assert ends == {"best_effort": [90, 200, 110], "least_late": [90, 180, 200]}


def test_places_are_kept_for_those_that_can_begin_in_time(step_time):
    # Two places. The second program, with its long prompt, can only be late; the third, in time.
    workload = make_workload([[[(1, 9)]], [[(100, 2), (1, 2)]], [[(1, 2)]]])
    models = {"e": step_time(terms={"const": 10.0, "prefill_tokens": 1.0}, max_batch_size=2)}
    starts = {}
    for reserve in (0.0, 0.5):
        policy = Sfs(ttft_target_ms=25.0, reserve=reserve)
        requests = simulate_once(
            make_pool("e"), models, workload, policy, in_turn(workload, [0, 2, 30])
        ).requests
        requests = requests.sort_values(["program", "stage_index"])
        starts[reserve] = (requests["arrival_ms"] + requests["queue_ms"]).tolist()
    # The third is sent at once, and begins with the step after the one that ends at 31. The first
    # ends at 92: now the second finds both places free, and is behind with its next stage too.
    assert starts[0.5] == [0, 92, 222, 31]  # 100 tokens are two steps, 130 ms with the next one
    # Without a reserve the second is sent at once, and its prompt makes the third late as well.
    assert starts[0.0][1] == 11
    assert starts[0.0][3] > 30 + 25


def test_utility_weighs_what_an_answer_costs(step_time):
    workload = make_workload(
        [[[(100, 10)], [(100, 10)]]], models=("s", "l"), confidence=[[0.5, 0.6]]
    )
    models = {name: step_time(model=name[0]) for name in ("small", "large")}
    engines = [
        EngineSpec(
            name=name,
            model=name[0],
            base_url="http://x/v1",
            price=Price(input_usd_per_m=price, output_usd_per_m=10 * price),
        )
        for name, price in (("small", 0.1), ("large", 1.0))
    ]
    # The large one costs 200 micro-dollars, the small one 20: 180 more for 0.1 of success.
    for weight, expected in ((5e-4, "large"), (6e-4, "small")):
        for policy in (
            LatencyAgnostic(cost_weight=weight),
            StaticPrior(cost_weight=weight, ttft_target_ms=30.0),
            Sfs(cost_weight=weight, ttft_target_ms=30.0),
        ):
            programs = simulate_once(
                Pool(engines=engines), models, workload, policy, in_turn(workload, [0.0])
            ).programs
            assert programs["engine"].tolist() == [expected]
            assert programs["cost"].tolist() == [{"large": 200.0, "small": 20.0}[expected]]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_static_prior_does_not_see_the_load(step_time, is_async):
    limits = {"max_num_seqs": 1, "async_scheduling": is_async}
    models = {
        "a": step_time(terms={"const": 10.0}, **limits),
        "b": step_time(terms={"const": 12.0}, **limits),
    }
    workload = make_workload([[[(1, 10)]]])
    chosen = {}
    for policy in (
        StaticPrior(ttft_target_ms=11.0, window=9),
        Sfs(ttft_target_ms=11.0, window=9),
    ):
        programs = simulate_once(
            make_pool("a", "b"), models, workload, policy, in_turn(workload, [0, 1, 2])
        ).programs
        chosen[policy.kind] = programs["engine"].tolist()
    # Idle, a begins in time and b does not; busy, neither: then the shorter queue has it.
    assert chosen == {"static_prior": ["a", "a", "a"], "sfs": ["a", "b", "a"]}


def test_chimeras_load_can_be_the_time_to_completion(step_time):
    models = {
        "a": step_time(terms={"const": 10.0}, decode_ms_per_token=10.0, max_batch_size=1),
        "b": step_time(terms={"const": 15.0}, decode_ms_per_token=15.0, max_batch_size=1),
    }
    workload = make_workload([[[(1, 10)]]])
    chosen = {}
    for load in ("inflight+self", "sfs"):
        policy = Chimera(tau=0.0, load=load, window=9)
        programs = simulate_once(
            make_pool("a", "b"), models, workload, policy, in_turn(workload, [0, 1])
        ).programs
        chosen[load] = programs["engine"].tolist()
    # By the tokens in flight a is twice as loaded; in truth both programs decode together.
    assert chosen == {"inflight+self": ["a", "b"], "sfs": ["a", "a"]}


def test_the_same_seed_gives_the_same_programs_under_every_policy(step_time):
    workload = make_workload([[[(3, i + 1)]] for i in range(20)])
    models = {name: step_time() for name in "ab"}
    runs = [
        simulate_once(
            make_pool(*"ab"),
            models,
            workload,
            policy,
            poisson(workload, rate_per_s=20, programs=50, seed=3),
        ).programs
        for policy in (RoundRobin(), ShortestQueue(), Chimera())
    ]
    for run in runs[1:]:
        columns = ["question_id", "arrival_ms", "trajectory"]
        pd.testing.assert_frame_equal(run[columns], runs[0][columns])
    slower = poisson(workload, rate_per_s=10, programs=50, seed=3)
    assert slower.times_ms == pytest.approx(2 * runs[0]["arrival_ms"].to_numpy())


def test_recorded_arrivals_replay_given_questions():
    workload = make_workload([[[(1, 1)]], [[(1, 2)]]])
    arrivals = recorded(workload, times_ms=[0, 5, 5], seed=0, questions=["q1", "q0", "q1"])
    assert arrivals.questions.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="nowhere"):
        recorded(workload, times_ms=[0], seed=0, questions=["nowhere"])


def test_preemptions_are_counted(step_time):
    # Three blocks of 16 tokens: two sequences of 30 do not fit at their full length.
    models = {"e": step_time(num_kv_blocks=4, max_num_seqs=2, max_batch_size=2)}
    workload = make_workload([[[(10, 20)]]])
    result = simulate_once(
        make_pool("e"), models, workload, RoundRobin(), in_turn(workload, [0, 0])
    )
    assert result.requests["preemptions"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"models": {}}, ConfigError, "'e' has no step-time model"),
        ({"pool": make_pool("e", model="other")}, DataError, "'other'"),
        ({"limits": {"num_kv_blocks": 2}}, DataError, "'e' can never run .* 'q1-m'"),
        ({"limits": {"max_model_len": 24}}, DataError, "'e' can never run .* 'q1-m'"),
    ],
)
def test_what_cannot_be_simulated_is_refused(step_time, change, error, named):
    workload = make_workload([[[(2, 2)]], [[(3, 4), (20, 5)]]])
    with pytest.raises(error, match=named):
        simulate_once(
            change.get("pool", make_pool("e")),
            change.get("models", {"e": step_time(**change.get("limits", {}))}),
            workload,
            RoundRobin(),
            in_turn(workload, [0.0]),
        )


@pytest.mark.parametrize(
    ("curves", "words"),
    [
        ([(), ()], "Engines a, b share device 'gpu', .* of 'a' has no sharing curve: measure"),
        ([(1.0, 1.5), ()], "of 'b' has no sharing curve: .*collect steps --together gpu"),
        ([(1.0,), (1.0,)], "of 'a' has one for up to 1 busy engines: measure"),
        (
            [(1.0, 1.5), (1.0, 1.6)],
            r"Engines 'a' and 'b' .* different sharing curves \(\[1, 1.5\] and \[1, 1.6\]\)",
        ),
        ([(1.0, 1.5), (1.0, 1.5, 1.9)], "Engines 'a' and 'b' .* different sharing curves"),
    ],
)
def test_sharing_that_was_not_measured_or_not_together_is_refused(step_time, curves, words):
    workload = make_workload([[[(2, 2)]]])
    models = {
        name: step_time(sharing_curve=curve) for name, curve in zip("ab", curves, strict=True)
    }
    with pytest.raises(DataError, match=words):
        simulate_once(
            make_pool("a", "b", device_group="gpu"),
            models,
            workload,
            RoundRobin(),
            in_turn(workload, [0.0]),
        )

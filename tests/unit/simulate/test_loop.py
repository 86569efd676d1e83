"""Whole simulations: against a plain cluster, in Chimera's limits, and what they leave behind."""

import itertools
import math
from dataclasses import replace
from unittest import mock

import numpy as np
import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_cluster import PlainCluster
from plain_mlfq import MlfqCluster

from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.predict import engine_arrays as rows
from chimera_train.scheduling.chimera import choose_engine
from chimera_train.scheduling.policy import (
    Chimera,
    LatencyAgnostic,
    RoundRobin,
    Sfs,
    ShortestQueue,
    StaticPrior,
)
from chimera_train.scheduling.state import FREE, NOWHERE
from chimera_train.simulate import cluster
from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.events import Down, Slow
from chimera_train.simulate.workload import Workload

# Two engines of one model and one of another.
POOL = Pool(
    engines=[
        EngineSpec(name=name, model=model, base_url="http://x/v1")
        for name, model in (("a", "s"), ("b", "l"), ("c", "s"))
    ]
)
LONGEST = 60
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.integers(4, 24),
        "block_size": st.sampled_from([1, 4, 16]),
        "scheduling_policy": st.sampled_from(["priority", "fcfs"]),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
    }
)
ORDERS = st.sampled_from(["fcfs", "stjf"])
POLICIES = st.one_of(
    st.builds(
        Chimera,
        tau=st.sampled_from([0.0, 0.5, 5.0, math.inf]),
        delta_s=st.sampled_from([0.0, 0.1]),
        load=st.sampled_from(["inflight", "inflight+self"]),
        upgrade=st.sampled_from(["margin", "argmax"]),
        order=ORDERS,
        aging=st.integers(0, 4),
        window=st.sampled_from([None, 1, 9]),
    ),
    st.builds(ShortestQueue, order=ORDERS, window=st.sampled_from([None, 1, 9])),
    st.builds(RoundRobin, order=ORDERS),
)
# The gateway does not serve these, so there is no plain cluster for them.
SIMULATED_ONLY = st.one_of(
    st.builds(
        Sfs,
        ttft_target_ms=st.sampled_from([5.0, 50.0, math.inf]),
        overload=st.sampled_from(["least_late", "shortest_queue", "best_effort", "shed"]),
        order=ORDERS,
    ),
    st.builds(ShortestQueue, order=st.sampled_from(["sjf", "ltr", "stjf_oracle", "mlfq"])),
    st.builds(StaticPrior, ttft_target_ms=st.sampled_from([5.0, 50.0])),
    st.builds(LatencyAgnostic),
    st.builds(Chimera, load=st.just("sfs")),
)
STAGE = st.fixed_dictionaries(
    {
        "prompt_tokens": st.integers(1, 30),
        "output_tokens": st.integers(1, 30),
        "remaining_tokens": st.floats(0, 60),
        "overrun_tokens": st.floats(0, 20),
        "stage_tokens": st.floats(0, 30),
        "rank": st.integers(0, 5).map(float),
        "stops": st.booleans(),
        "tool_ms": st.sampled_from([0.0, 0.0, 3.0, 50.0]),
    }
)
TRAJECTORY = st.lists(STAGE, min_size=1, max_size=3)
# One or two samples of each model on each question.
QUESTIONS = st.lists(
    st.tuples(*[st.lists(TRAJECTORY, min_size=1, max_size=2)] * 2), min_size=1, max_size=4
)


@st.composite
def workloads(draw):
    questions = draw(QUESTIONS)
    samples = [trajectories for question in questions for trajectories in question]
    flat = [trajectory for trajectories in samples for trajectory in trajectories]
    stages = [stage for trajectory in flat for stage in trajectory]
    shape = (len(questions), 2)
    n_samples = np.array([len(trajectories) for trajectories in samples])
    q = draw(st.lists(st.floats(0, 1), min_size=n_samples.size, max_size=n_samples.size))
    return Workload(
        questions=[f"q{i}" for i in range(len(questions))],
        models=["s", "l"],
        program_ids=[str(i) for i in range(len(flat))],
        first_trajectory=(np.cumsum(n_samples) - n_samples).reshape(shape),
        n_samples=n_samples.reshape(shape),
        confidence=np.reshape(q, shape),
        first_stage=np.cumsum([0, *map(len, flat)]),
        score=np.zeros(len(flat)),
        **{name: np.array([stage[name] for stage in stages]) for name in stages[0]},
    )


@st.composite
def arrivals(draw, workload):
    """Open arrivals, or users that start a program when another has ended."""
    n = draw(st.integers(1, 12))
    gap = st.one_of(st.sampled_from([0.0, 10.0]), st.floats(0, 40))
    gaps = draw(st.lists(gap, min_size=n, max_size=n))
    times_ms = np.cumsum(gaps)
    think_ms = None
    if draw(st.booleans()):
        times_ms[draw(st.integers(1, n)) :] = np.nan
        think_ms = np.array(draw(st.lists(st.floats(0, 40), min_size=n, max_size=n)))
    asked = draw(st.lists(st.integers(0, len(workload.questions) - 1), min_size=n, max_size=n))
    luck = draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=n, max_size=n))
    return Arrivals(times_ms, np.array(asked), np.array(luck), think_ms)


@st.composite
def events(draw):
    """Engines go down and slow down, together at times; 'c' does not go down."""
    moments_ms = st.one_of(st.sampled_from([0, 10, 20]), st.integers(0, 4000).map(lambda n: n / 10))
    drawn = []
    for engine, kind in (("a", Down), ("b", Down), ("a", Slow), ("b", Slow), ("c", Slow)):
        ends_ms = sorted(draw(st.lists(moments_ms, max_size=4, unique=True)))
        for at_ms, until_ms in itertools.zip_longest(ends_ms[::2], ends_ms[1::2]):
            spell = {"at_s": at_ms / 1000, "for_s": until_ms and (until_ms - at_ms) / 1000}
            if kind == Slow:
                spell["factor"] = draw(st.sampled_from([1.0, 1.7, 2.0]))
            drawn.append(kind(engine=engine, kind=kind.__name__.lower(), **spell))
    return drawn


def make_models(step_time, limits, extra_blocks, step_ms=3.0):
    """Step times by engine; memory for the longest request and ``extra_blocks`` more blocks."""
    # A request that the model ends may be computed once more.
    limits = {"block_size": 16, **limits}
    limits["num_kv_blocks"] = 2 - -LONGEST // limits["block_size"] + extra_blocks
    terms = {"const": step_ms, "decode_tokens": 0.25, "prefill_attn": 0.02}
    small = step_time(model="s", terms=terms, decode_ms_per_token=4.0, **limits)
    large = step_time(
        model="l", terms={**terms, "const": 2 * step_ms + 1}, decode_ms_per_token=9.0, **limits
    )
    return {"a": small, "b": large, "c": small}


def assert_same_requests(result, plain):
    """A simulation and a plain one have done the same, to the last bit."""
    found = result.requests.to_dict("records")
    names = [spec.name for spec in POOL.engines]
    for mine, other in zip(found, plain.requests, strict=True):
        program, stage, since_ms = (other[name] for name in ("program", "stage", "arrival_ms"))
        assert mine == {
            "program": program,
            "stage_index": other["number"],
            "engine": names[other["engine"]],
            "arrival_ms": since_ms,
            "queue_ms": other["start_ms"] - since_ms,
            "ttft_ms": other["first_token_ms"] - since_ms,
            "e2e_ms": other["end_ms"] - since_ms,
            "output_tokens": plain.workload.output_tokens[stage],
            "preemptions": other["preemptions"],
            "restarts": other["restarts"],
        }


@settings(max_examples=150)
@given(workloads(), LIMITS, st.integers(0, 30), POLICIES, st.data())
def test_every_request_equals_the_plain_cluster(
    step_time, workload, limits, extra_blocks, policy, data
):
    models = make_models(step_time, limits, extra_blocks)
    arriving = data.draw(arrivals(workload))
    befalling = data.draw(st.just([]) | events())
    result = simulate_once(POOL, models, workload, policy, arriving, befalling)
    plain = PlainCluster(POOL, models, workload, policy, arriving, befalling).run()

    assert_same_requests(result, plain)
    assert list(result.steps.values()) == [engine.steps for engine in plain.engines]
    assert list(result.busy_ms.values()) == [engine.busy_ms for engine in plain.engines]
    assert plain.scheduler.load_ms().tolist() == [0.0, 0.0, 0.0]


@settings(max_examples=50)
@given(workloads(), LIMITS, st.integers(0, 30), POLICIES | SIMULATED_ONLY, st.data())
def test_nothing_is_left_when_every_program_has_ended(
    step_time, workload, limits, extra_blocks, policy, data
):
    models = make_models(step_time, limits, extra_blocks)
    with mock.patch.object(cluster, "run", wraps=cluster.run) as run:
        arriving, befalling = data.draw(arrivals(workload)), data.draw(st.just([]) | events())
        simulate_once(POOL, models, workload, policy, arriving, befalling)
    sim = run.call_args.args[0]
    state, engines = sim.state, sim.pool
    for zero in (state.in_flight_tokens, state.outstanding, state.queue_length):
        assert not zero.any()
    assert (state.program_engine == NOWHERE).all()
    assert (state.request_status == FREE).all()
    assert (engines.n_free == engines.free.shape[1]).all()
    n_blocks = [model.engine.num_kv_blocks - 1 for model in models.values()]
    assert engines.arrays.counts[:, rows.FREE_BLOCKS].tolist() == n_blocks
    assert np.isnan(sim.clock.busy_since_ms).all()


def first_requests(plain):
    """The request with which each program's engine was chosen."""
    stages, work = {}, plain.workload
    for request in plain.requests:
        stages.setdefault(request["program"], request)
    return [
        (work.confidence[plain.arrivals.questions[p], plain.columns], r) for p, r in stages.items()
    ]


@settings(max_examples=50)
@given(
    workloads(),
    LIMITS,
    st.sampled_from(
        [(0.0, 0.0), (0.0, 0.1), (math.inf, 0.0), (0.5, math.inf), (math.inf, math.inf)]
    ),
    st.sampled_from(["inflight", "inflight+self"]),
    st.data(),
)
def test_the_limits_of_chimera_hold_at_every_choice(
    step_time, workload, limits, setting, load, data
):
    tau, delta_s = setting
    policy = Chimera(tau=tau, delta_s=delta_s, load=load)
    models = make_models(step_time, limits, 5)
    arriving = data.draw(arrivals(workload))
    plain = PlainCluster(POOL, models, workload, policy, arriving).run()
    result = simulate_once(POOL, models, workload, policy, arriving)
    names = [spec.name for spec in POOL.engines]
    up = np.ones(3, dtype=bool)
    for q, request in first_requests(plain):
        engine, loads = request["engine"], request["load_ms"]
        assert result.programs["engine"][request["program"]] == names[engine]
        if delta_s == math.inf:
            assert engine == np.argmin(loads)
        elif tau == 0.0:
            assert loads[engine] == loads.min()
        else:
            assert q[engine] == q.max()
        # More load on an engine that was not chosen would not have made it the choice.
        other = data.draw(st.sampled_from([e for e in range(3) if e != engine]))
        loads[other] += data.draw(st.floats(0, 100))
        assert choose_engine(loads, q, up, tau, delta_s, True)[0] != other


@settings(max_examples=50)
@given(workloads(), LIMITS, st.sampled_from(["inflight", "inflight+self"]), st.data())
def test_on_a_homogeneous_pool_chimera_is_shortest_total_job_first(
    step_time, workload, limits, load, data
):
    """Whatever τ and Δs: on the least loaded engine, in order of ŷ."""
    pool = Pool(engines=[spec.model_copy(update={"model": "s"}) for spec in POOL.engines])
    models = dict.fromkeys("abc", make_models(step_time, limits, 5)["a"])
    arriving = data.draw(arrivals(workload))
    taus = st.one_of(st.floats(0, 10), st.just(math.inf))
    drawn, plain_stjf = (
        Chimera(tau=data.draw(taus), delta_s=data.draw(st.floats(0, 1)), load=load),
        Chimera(tau=0.0, delta_s=math.inf, load="inflight"),
    )
    one, other = (simulate_once(pool, models, workload, p, arriving) for p in (drawn, plain_stjf))
    pd.testing.assert_frame_equal(one.requests, other.requests)
    plain = PlainCluster(pool, models, workload, drawn, arriving).run()
    for _, request in first_requests(plain):
        assert request["engine"] == np.argmin(request["load_ms"])


@settings(max_examples=100)
@given(workloads(), LIMITS, st.integers(0, 30), st.sampled_from([3.0, 40.0, 700.0]), st.data())
def test_mlfq_equals_the_plain_cluster(step_time, workload, limits, extra_blocks, step_ms, data):
    """Also where steps are so long that levels are skipped and requests starve."""
    models = make_models(step_time, limits, extra_blocks, step_ms)
    arriving = data.draw(arrivals(workload))
    result = simulate_once(POOL, models, workload, RoundRobin(order="mlfq"), arriving)
    no_window = RoundRobin(window=len(arriving.times_ms))
    plain = MlfqCluster(POOL, models, workload, no_window, arriving).run()
    assert_same_requests(result, plain)
    assert list(result.steps.values()) == [engine.steps for engine in plain.engines]


@settings(max_examples=30)
@given(
    workloads(),
    LIMITS,
    st.sampled_from(["sjf", "ltr", "stjf_oracle"]),
    st.sampled_from([RoundRobin(), ShortestQueue(window=1), LatencyAgnostic()]),
    st.integers(0, 4),
    st.data(),
)
def test_every_order_is_the_shortest_first_of_what_it_goes_by(
    step_time, workload, limits, order, policy, aging, data
):
    """Where the choice of an engine does not look at lengths."""
    models = make_models(step_time, limits, 5)
    arriving = data.draw(arrivals(workload))
    ordered, stjf = (
        policy.model_copy(update={"order": name, "aging": aging}) for name in (order, "stjf")
    )
    if order == "stjf_oracle":
        still = [
            workload.output_tokens[i : workload.first_stage[t + 1]].sum()
            for t in range(len(workload.program_ids))
            for i in range(workload.first_stage[t], workload.first_stage[t + 1])
        ]
    else:
        still = workload.stage_tokens if order == "sjf" else workload.rank
    same = replace(workload, remaining_tokens=np.array(still, dtype=float))
    one = simulate_once(POOL, models, workload, ordered, arriving)
    other = simulate_once(POOL, models, same, stjf, arriving)
    pd.testing.assert_frame_equal(one.requests, other.requests)


@settings(max_examples=30)
@given(workloads(), LIMITS, st.sampled_from(["sjf", "ltr"]), POLICIES, st.data())
def test_given_equal_predictions_the_orders_are_one(
    step_time, workload, limits, order, policy, data
):
    """As of programs of one stage; the load is of ŷ all the same."""
    models = make_models(step_time, limits, 5)
    arriving = data.draw(arrivals(workload))
    tokens = workload.remaining_tokens
    same = replace(workload, stage_tokens=tokens, rank=tokens)
    one, other = (
        simulate_once(POOL, models, same, policy.model_copy(update={"order": name}), arriving)
        for name in (order, "stjf")
    )
    pd.testing.assert_frame_equal(one.requests, other.requests)


@settings(max_examples=30)
@given(workloads(), LIMITS, st.sampled_from([5.0, 30.0]), ORDERS, st.data())
def test_what_is_shed_leaves_no_trace_and_nobody_else_is_late(
    step_time, workload, limits, ttft_target_ms, order, data
):
    """The others are served as if it had never come."""
    models = make_models(step_time, limits, 5)
    arriving = data.draw(arrivals(workload))
    arriving = replace(arriving, times_ms=np.nan_to_num(arriving.times_ms, nan=100.0))
    policy = Sfs(ttft_target_ms=ttft_target_ms, overload="shed", order=order, window=20)
    result = simulate_once(POOL, models, workload, policy, arriving)
    shed = result.programs["engine"].isna().to_numpy()
    refused = result.programs[shed]
    assert refused[["program_latency_ms", "ttft_ms", "trajectory"]].isna().all(axis=None)
    assert not refused[["score", "cost", "n_stages", "total_output_tokens"]].any(axis=None)
    assert refused["arrival_ms"].tolist() == arriving.times_ms[shed].tolist()
    assert set(result.requests["program"]) == set(np.flatnonzero(~shed))
    if shed.all():
        return
    columns = ("times_ms", "questions", "luck")
    rest = replace(arriving, **{name: getattr(arriving, name)[~shed] for name in columns})
    if rest.think_ms is not None:
        rest = replace(rest, think_ms=rest.think_ms[~shed])
    again = simulate_once(POOL, models, workload, policy, rest)
    pd.testing.assert_frame_equal(
        again.programs, result.programs[~shed].reset_index(drop=True), check_dtype=False
    )


def test_a_user_whose_program_is_shed_goes_on(step_time):
    workload = Workload(
        questions=["q"],
        models=["s", "l"],
        program_ids=["0", "1"],
        first_trajectory=np.array([[0, 1]]),
        n_samples=np.ones((1, 2), dtype=np.int64),
        confidence=np.ones((1, 2)),
        first_stage=np.array([0, 1, 2]),
        score=np.ones(2),
        prompt_tokens=np.ones(2, dtype=np.int64),
        output_tokens=np.ones(2, dtype=np.int64),
        remaining_tokens=np.ones(2),
        stops=np.zeros(2, dtype=bool),
        tool_ms=np.zeros(2),
    )
    models = make_models(step_time, {}, 5)
    users = Arrivals(
        np.array([0.0, np.nan, np.nan]), np.zeros(3, dtype=int), np.zeros(3), np.array([5.0] * 3)
    )
    policy = Sfs(ttft_target_ms=1.0, overload="shed")  # no step is as short
    programs = simulate_once(POOL, models, workload, policy, users).programs
    assert programs["engine"].isna().all()
    assert programs["arrival_ms"].tolist() == [0.0, 5.0, 10.0]

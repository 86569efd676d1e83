"""The estimate against the plain engine run step by step, on states that traffic leads to."""

import dataclasses
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_engine import Call, PlainEngine, plain_estimate

from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.engine_state import Resident, empty_engine, engine_with
from chimera_train.predict.ttft import TtftEstimator

TERMS = {
    "const": 1.0,
    "prefill_tokens": 0.3,
    "decode_tokens": 0.25,
    "decode_ctx_tokens": 0.07,
    "prefill_attn": 0.01,
}
TABLE = ((1.0, 8.0, 30.0), (0.0, 4.0, 5.0))
CALLS = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt
        st.integers(1, 30),  # output
        st.integers(0, 3),  # priority
        st.integers(0, 40),  # cached
        st.integers(0, 20),  # the step before which it arrives
        st.integers(1, 60),  # predicted output
    ),
    max_size=14,
)
NEW = st.tuples(st.integers(1, 69), st.integers(1, 60), st.integers(0, 3), st.integers(0, 69))
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 6),
        "max_num_batched_tokens": st.integers(1, 24),
        "block_size": st.sampled_from([1, 4, 16]),
        "max_model_len": st.integers(70, 110),
        "scheduling_policy": st.sampled_from(["priority", "fcfs"]),
        "enable_chunked_prefill": st.booleans(),
        "async_scheduling": st.booleans(),
    }
)


def build(step_time, limits, extra_blocks):
    """An engine whose memory holds the longest request and ``extra_blocks`` more blocks."""
    limits = dict(limits)
    limits["num_kv_blocks"] = (
        1 - (-(limits["max_model_len"] - 1) // limits["block_size"]) + extra_blocks
    )
    if not limits["enable_chunked_prefill"]:
        limits["max_num_batched_tokens"] = limits["max_model_len"]
    return dataclasses.replace(step_time(terms=TERMS, **limits), table=TABLE)


def plain_engine(info):
    return PlainEngine(
        info.max_num_seqs,
        info.max_num_batched_tokens,
        info.block_size,
        info.num_kv_blocks - 1,
        info.enable_chunked_prefill,
        asynchronous=info.async_scheduling,
    )


def after(engine, info, calls, n_steps, mid_step):
    """Run the plain engine for some steps; then give its requests their predicted outputs."""
    by_priority = info.scheduling_policy == "priority"
    pending = sorted(enumerate(calls), key=lambda call: call[1][4])
    predicted = {}
    for step in range(n_steps + 1):
        while pending and pending[0][1][4] <= step:
            number, (prompt, output, priority, cached, _, guess) = pending.pop(0)
            predicted[number] = guess
            engine.waiting.append(
                Call(number, prompt, output, priority * by_priority, cached=cached)
            )
        if step < n_steps or mid_step:
            engine.schedule()
        if step < n_steps:
            engine.update()
            engine.scheduled = {}
    for call in [*engine.running, *engine.waiting]:
        most = info.max_model_len - call.prompt
        call.output = max(min(predicted[call.number], most), call.generated + 1)
    return predicted


def resident(call, predicted, chunk=0):
    return Resident(
        arrival=call.number,
        prompt_tokens=call.prompt,
        output_tokens=predicted,
        priority=call.priority,
        cached_tokens=call.cached,
        computed_tokens=call.computed - chunk,
        generated_tokens=call.generated,
        chunk_tokens=chunk,
    )


@settings(max_examples=300)
@given(
    calls=CALLS,
    new=NEW,
    limits=LIMITS,
    extra_blocks=st.integers(0, 8),
    n_steps=st.integers(0, 25),
    mid_step=st.booleans(),
)
# Only the hit lets the new prompt into a step beside those that decode.
@example(
    calls=[(1, 30, 0, 0, 0, 60), (1, 30, 0, 0, 0, 60)],
    new=(69, 1, 0, 64),
    limits={
        "max_num_seqs": 6,
        "max_num_batched_tokens": 1,
        "block_size": 1,
        "max_model_len": 70,
        "scheduling_policy": "priority",
        "enable_chunked_prefill": False,
        "async_scheduling": False,
    },
    extra_blocks=60,
    n_steps=3,
    mid_step=False,
)
def test_estimates_equal_the_plain_engines(
    step_time, calls, new, limits, extra_blocks, n_steps, mid_step
):
    model = build(step_time, limits, extra_blocks)
    info = model.engine
    engine = plain_engine(info)
    predicted = after(engine, info, calls, n_steps, mid_step)
    state = engine_with(
        info,
        [resident(c, predicted[c.number], engine.scheduled.get(c, 0)) for c in engine.running],
        [resident(c, predicted[c.number]) for c in engine.waiting],
    )
    assert state.counts[rows.FREE_BLOCKS] == engine.free
    before = [array.copy() for array in (state.requests, state.queues, state.counts)]
    prompt, output, priority, cached = new

    estimator = TtftEstimator(model)
    arguments = (state, prompt, cached, output, priority)
    first, unknown = estimator.estimate(*arguments, busy_ms=2.5, completion=False)
    both = estimator.estimate(*arguments, busy_ms=2.5, completion=True)

    call = Call(
        1000,
        prompt,
        min(output, info.max_model_len - prompt),
        priority if info.scheduling_policy == "priority" else 0,
        cached=cached,
    )
    expected = plain_estimate(engine, call, model.step_ms, 2.5)
    assert both == pytest.approx(expected, rel=1e-12)
    assert first == both[0]
    assert math.isnan(unknown)
    for array, as_it_was in zip((state.requests, state.queues, state.counts), before, strict=True):
        np.testing.assert_array_equal(array, as_it_was)


def test_an_estimate_by_hand(step_time):
    terms = {
        "const": 10.0,
        "prefill_tokens": 0.1,
        "decode_tokens": 1.0,
        "decode_ctx_tokens": 0.01,
        "prefill_attn": 0.001,
    }
    model = step_time(terms=terms, max_num_batched_tokens=64)
    state = engine_with(
        model.engine,
        [Resident(1, 20, output_tokens=8, computed_tokens=24, generated_tokens=5)],
        [Resident(2, 60, output_tokens=2)],
    )
    first, last = TtftEstimator(model).estimate(
        state, 30, 20, output_tokens=2, priority=0, busy_ms=4.0, completion=True
    )
    # 16 of the 20 cached tokens are a whole block. The first step decodes one token, computes the
    # waiting prompt and, with the 3 tokens left, the new one up to 19; the second the other 11.
    step_1 = 10 + 0.1 * 63 + 1 + 0.01 * 24 + 0.001 * (60 * 61 / 2 + 3 * 16 + 3 * 4 / 2)
    step_2 = 10 + 0.1 * 11 + 2 + 0.01 * (25 + 60) + 0.001 * (11 * 19 + 11 * 12 / 2)
    step_3 = 10 + 2 + 0.01 * (26 + 30)
    assert first == pytest.approx(4 + step_1 + step_2)
    assert last == pytest.approx(4 + step_1 + step_2 + step_3)


def test_the_step_under_way_ends_first(step_time):
    model = step_time(terms={"const": 10.0}, max_num_seqs=1)
    running = {"computed_tokens": 24, "generated_tokens": 5}
    estimator = TtftEstimator(model)
    estimates = [
        estimator.estimate(
            engine_with(model.engine, [Resident(1, 20, 6, **running, chunk_tokens=chunk)], []),
            30,
            0,
            5,
            0,
            busy_ms=4.0,
            completion=False,
        )[0]
        for chunk in (1, 0)
    ]
    # The only place is free after the step under way, or a step later if it is not told of.
    assert estimates == [14.0, 24.0]


@pytest.mark.parametrize(
    ("generated", "overrun", "more"),
    [
        (5, 0, 3),  # predicted: 8
        (8, 0, 1),  # outlived, and nothing is known of what comes then
        (8, 5, 5),
        (12, 5, 1),
        (13, 5, 10),  # outlived once more, by twice as much
        (13, 500, 17),  # as many as the engine has room for
    ],
)
def test_what_outlives_its_prediction(step_time, generated, overrun, more):
    model = step_time(terms={"const": 10.0}, max_num_seqs=1, max_model_len=50)
    running = Resident(
        1,
        20,
        output_tokens=8,
        computed_tokens=19 + generated,
        generated_tokens=generated,
        overrun_tokens=overrun,
    )
    state = engine_with(model.engine, [running], [])
    first, _ = TtftEstimator(model).estimate(state, 30, 0, 5, 0, busy_ms=0.0, completion=False)
    # The only place is free when the running request has ended.
    assert first == 10.0 * (more + 1)


@pytest.mark.parametrize(
    ("limits", "prompt", "output", "finite"),
    [
        ({"max_model_len": 60}, 59, 1, True),
        ({"max_model_len": 60}, 59, 50, True),  # vLLM ends it at 60 tokens
        ({"max_model_len": 60}, 60, 1, False),
        ({"num_kv_blocks": 4}, 48, 1, True),  # 3 of the 4 blocks can be used
        ({"num_kv_blocks": 4}, 49, 1, False),
        ({"max_num_batched_tokens": 64, "enable_chunked_prefill": False}, 63, 1, True),
        ({"max_num_batched_tokens": 64, "enable_chunked_prefill": False}, 64, 1, False),
    ],
)
def test_a_request_that_can_never_run(step_time, limits, prompt, output, finite):
    model = step_time(**limits)
    state = empty_engine(model.engine, 0)
    arguments = (state, prompt, 0, output, 0)
    estimator = TtftEstimator(model)
    both = estimator.estimate(*arguments, busy_ms=0.0, completion=True)
    assert both == ((10.0, 10.0) if finite else (math.inf, math.inf))
    assert math.isnan(estimator.estimate(*arguments, busy_ms=0.0, completion=False)[1])


def test_who_waits_behind_a_request_that_can_never_run_waits_for_good(step_time):
    model = step_time(num_kv_blocks=4)
    state = engine_with(
        model.engine,
        [Resident(1, 10, 3, computed_tokens=11, generated_tokens=2)],
        [Resident(2, 49, 1, priority=1)],
    )
    estimator = TtftEstimator(model)
    behind = estimator.estimate(state, 5, 0, 5, 1, busy_ms=0.0, completion=True)
    assert behind == (math.inf, math.inf)
    before = estimator.estimate(state, 5, 0, 5, 0, busy_ms=0.0, completion=True)
    assert before == (10.0, 50.0)


def test_a_request_compiles_nothing(step_time):
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import ttft
from chimera_train.predict.engine_state import Resident, engine_with
from chimera_train.predict.step_time import StepTimeModel
model = {step_time()!r}
estimator = ttft.TtftEstimator(model)
estimator.warm_up()
compiled = list(ttft._estimate.signatures)
state = engine_with(model.engine, [], [Resident(1, 8, 1)])
estimator.estimate(state, 5, 0, 5, 1, busy_ms=0, completion=False)
assert ttft._estimate.signatures == compiled, ttft._estimate.signatures
print(sum(ttft._estimate.stats.cache_misses.values()))
"""
    TtftEstimator(step_time()).warm_up()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ
    )
    assert done.stderr == ""
    assert done.stdout == "0\n"

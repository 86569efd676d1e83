"""The compiled step against a plain reading of vLLM's rules, step for step, on random traffic."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_engine import Call, PlainEngine

from chimera_train.predict import engine_step
from chimera_train.simulate.engine import SimulatedEngine, servable

CALLS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 12),  # output
        st.integers(0, 3),  # priority
        st.integers(0, 12),  # the step before which it arrives
    ),
    min_size=1,
    max_size=14,
)
LIMITS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(1, 24),
        "block_size": st.sampled_from([1, 4, 16]),
        "extra_tokens": st.integers(0, 40),
        "scheduling_policy": st.sampled_from(["priority", "fcfs"]),
        "enable_chunked_prefill": st.booleans(),
    }
)


def build(step_time, calls, limits):
    """An engine just large enough for the largest call and ``extra_tokens`` more."""
    limits = dict(limits)
    longest = max(prompt + output for prompt, output, _, _ in calls)
    tokens = longest - 1 + limits.pop("extra_tokens")
    limits["num_kv_blocks"] = 1 - (-tokens // limits["block_size"])
    if not limits["enable_chunked_prefill"]:
        limits["max_num_batched_tokens"] = longest
    model = step_time(terms={"const": 1.0, "decode_tokens": 0.25, "prefill_attn": 0.01}, **limits)
    info = model.engine
    assert servable(info, np.array([c[0] for c in calls]), np.array([c[1] for c in calls])).all()
    return model


@settings(max_examples=150)
@given(calls=CALLS, limits=LIMITS)
# The preempted request was scheduled before its preemptor: the third one gets its tokens.
@example(
    calls=[(1, 5, 2, 0), (1, 5, 0, 1), (6, 1, 1, 1)],
    limits={
        "max_num_seqs": 3,
        "max_num_batched_tokens": 3,
        "block_size": 1,
        "extra_tokens": 5,
        "scheduling_policy": "priority",
        "enable_chunked_prefill": True,
    },
)
def test_every_step_equals_the_reference(step_time, calls, limits):
    model = build(step_time, calls, limits)
    info = model.engine
    engine = SimulatedEngine(model, capacity=len(calls))
    arrays = (engine._requests, engine._times, engine._queues, engine._counts)
    reference = PlainEngine(
        info.max_num_seqs,
        info.max_num_batched_tokens,
        info.block_size,
        info.num_kv_blocks - 1,
        info.enable_chunked_prefill,
    )
    pending = [(*call, number) for number, call in enumerate(sorted(calls, key=lambda c: c[3]))]
    started, first_token, n_finished = {}, {}, 0
    for now in range(10_000):
        while pending and (pending[0][3] <= now or not (reference.running or reference.waiting)):
            prompt, output, priority, _, number = pending.pop(0)
            engine.submit(number, prompt, output, priority)
            by_priority = info.scheduling_policy == "priority"
            reference.waiting.append(Call(number, prompt, output, priority * by_priority))
        features = engine_step.schedule_step(engine._limits, *arrays, float(now))
        assert features == pytest.approx(reference.schedule())
        running = engine._queues[engine_step.RUNNING, : engine._counts[engine_step.N_RUNNING]]
        chunks = {
            int(engine._request_id[slot]): int(engine._requests[engine_step.CHUNK, slot])
            for slot in running
        }
        assert list(chunks) == [call.number for call in reference.running]
        expected = {call.number: new for call, new in reference.scheduled.items()}
        assert {number: chunk for number, chunk in chunks.items() if chunk} == expected
        assert engine._counts[engine_step.FREE_BLOCKS] == reference.free
        for call in reference.scheduled:
            started.setdefault(call.number, now)

        done = {done.request_id: done for done in engine.end_step(now + 0.5)}
        finished = reference.update()
        for call in [*reference.running, *finished]:
            if call.generated:
                first_token.setdefault(call.number, now + 0.5)
        assert list(done) == [call.number for call in finished]
        for call in finished:
            assert done[call.number].preemptions == call.preemptions
            assert done[call.number].start_ms == started[call.number]
            assert done[call.number].first_token_ms == first_token[call.number]
        n_finished += len(finished)
        if n_finished == len(calls):
            break
    assert n_finished == len(calls)
    assert not engine.has_work
    assert engine._counts[engine_step.FREE_BLOCKS] == info.num_kv_blocks - 1


@given(CALLS, LIMITS)
def test_running_ahead_changes_nothing(step_time, calls, limits):
    model = build(step_time, calls, limits)
    ends = []
    for horizon_ms in (0.0, 1e9):
        engine = SimulatedEngine(model, capacity=len(calls))
        for number, (prompt, output, priority, _) in enumerate(calls):
            engine.submit(number, prompt, output, priority)
        now, done = 0.0, []
        while engine.has_work:
            start_ms, step_ms = engine.advance(now, horizon_ms, 2.0)
            now = start_ms + 2.0 * step_ms
            done.append((now, engine.end_step(now)))
        assert engine.steps >= len(done)
        ends.append([(end, finished) for end, finished in done if finished])
    assert ends[0] == ends[1]


def test_a_prompt_in_chunks_then_one_token_a_step(step_time):
    model = step_time(max_num_batched_tokens=8)
    engine = SimulatedEngine(model, capacity=1)
    engine.submit(7, prompt_tokens=20, output_tokens=3, priority=0)
    arrays = (engine._requests, engine._times, engine._queues, engine._counts)
    features = []
    while engine.has_work:
        features.append(engine_step.schedule_step(engine._limits, *arrays, 0.0))
        engine.end_step(0.0)
    # n c + n (n + 1) / 2: 36; 8 * 8 + 36; 4 * 16 + 10. The last of 3 tokens is sampled, not fed.
    assert features == [(8, 0, 0, 36), (8, 0, 0, 100), (4, 0, 0, 74), (0, 1, 20, 0), (0, 1, 21, 0)]


def test_tokens_are_told_once(step_time):
    engine = SimulatedEngine(step_time(), capacity=2)
    engine.submit(5, prompt_tokens=4, output_tokens=3, priority=0)
    told = []
    finished = []
    for _ in range(3):
        engine.advance(0.0, 0.0, 1.0)
        finished += engine.end_step(0.0)
        if len(told) < 2:
            told.append(engine.fresh_tokens())
    assert told == [[(5, 1)], [(5, 1)]]
    assert [f.fresh_tokens for f in finished] == [1]
    assert engine.fresh_tokens() == []


@pytest.mark.parametrize(
    ("limits", "prompt", "output", "fits"),
    [
        ({"max_model_len": 100}, 90, 10, True),
        ({"max_model_len": 100}, 90, 11, False),
        ({"num_kv_blocks": 4}, 40, 9, True),  # 3 of the 4 blocks can be used: 48 tokens
        ({"num_kv_blocks": 4}, 40, 10, False),
        ({"max_num_batched_tokens": 64}, 100, 1, True),
        ({"max_num_batched_tokens": 64, "enable_chunked_prefill": False}, 64, 1, False),
    ],
)
def test_what_an_engine_can_run(step_time, limits, prompt, output, fits):
    info = step_time(**limits).engine
    assert servable(info, np.array([prompt]), np.array([output])).tolist() == [fits]

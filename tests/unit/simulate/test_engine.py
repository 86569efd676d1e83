"""The compiled step against a plain reading of vLLM's rules, step for step, on random traffic."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_engine import Call, PlainEngine, PlainPool

from chimera_train.predict import engine_arrays as rows
from chimera_train.predict import engine_step
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_cohort import dissolve_cohort
from chimera_train.simulate.engine import SimulatedEngine, servable

CALLS = st.lists(
    st.tuples(
        st.integers(1, 30),  # prompt
        st.integers(1, 12),  # output
        st.integers(0, 3),  # priority
        st.integers(0, 12),  # the step before which it arrives
        st.integers(0, 2),  # which text its prompt begins with
        st.integers(0, 30),  # how many tokens of it
        st.booleans(),  # whether the model ends it
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
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
    }
)


def build(step_time, calls, limits):
    """An engine just large enough for the largest call and ``extra_tokens`` more."""
    limits = dict(limits)
    longest = max(call[0] + call[1] for call in calls)
    tokens = longest - 1 + limits.pop("extra_tokens")
    # A request that the model ends may be computed once more.
    limits["num_kv_blocks"] = 2 - (-tokens // limits["block_size"])
    if not limits["enable_chunked_prefill"]:
        limits["max_num_batched_tokens"] = longest
    model = step_time(terms={"const": 1.0, "decode_tokens": 0.25, "prefill_attn": 0.01}, **limits)
    info = model.engine
    assert servable(info, np.array([c[0] for c in calls]), np.array([c[1] for c in calls])).all()
    return model


def texts(text, shared, prompt, block_size):
    """Numbers of the text of each whole block that a prompt shares with those that begin alike."""
    return [1000 * text + block for block in range(min(shared, prompt) // block_size)]


@settings(max_examples=400)
@given(calls=CALLS, limits=LIMITS)
# The preempted request was scheduled before its preemptor: the third one gets its tokens.
@example(
    calls=[
        (1, 5, 2, 0, 0, 0, False),
        (1, 5, 0, 1, 0, 0, False),
        (6, 1, 1, 1, 0, 0, False),
    ],
    limits={
        "max_num_seqs": 3,
        "max_num_batched_tokens": 3,
        "block_size": 1,
        "extra_tokens": 4,
        "scheduling_policy": "priority",
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    },
)
def test_every_step_equals_the_reference(step_time, calls, limits):
    model = build(step_time, calls, limits)
    info = model.engine
    engine = SimulatedEngine(model, capacity=len(calls), prompt_keys=30)
    arrays = engine.arrays
    n_blocks = info.num_kv_blocks - 1
    reference = PlainEngine(
        info.max_num_seqs,
        info.max_num_batched_tokens,
        info.block_size,
        n_blocks,
        info.enable_chunked_prefill,
        asynchronous=info.async_scheduling,
        pool=PlainPool(n_blocks, info.block_size) if info.enable_prefix_caching else None,
    )
    pending = sorted(enumerate(calls), key=lambda call: call[1][3])
    # Numbers of arrival, which decide among equals.
    pending = [(number, call) for number, (_, call) in enumerate(pending)]
    ahead, started, first_token, n_finished = None, {}, {}, 0
    for now in range(10_000):
        while pending and (pending[0][1][3] <= now or not engine.has_work):
            number, (prompt, output, priority, _, text, shared, stops) = pending.pop(0)
            keys = texts(text, shared, prompt, info.block_size)
            engine.submit(number, prompt, output, priority, prompt_keys=keys, stops=stops)
            by_priority = info.scheduling_policy == "priority"
            reference.waiting.append(
                Call(number, prompt, output, priority * by_priority, stops=stops, texts=tuple(keys))
            )
        is_step = engine_step.begin_step(arrays, float(now))
        expected = ahead if ahead else (reference.schedule(), dict(reference.scheduled))
        assert is_step == bool(expected[1])
        assert tuple(arrays.step[:4]) == pytest.approx(expected[0])
        for call in expected[1]:
            started.setdefault(call.number, now)
        ahead = None
        if info.async_scheduling and is_step:
            planned = reference.schedule()
            if reference.scheduled:
                ahead = planned, dict(reference.scheduled)
        running = arrays.queues[rows.RUNNING, : arrays.counts[rows.N_RUNNING]]
        numbers = [int(engine._request_id[slot]) for slot in running]
        assert numbers == [call.number for call in reference.running]
        apart = EngineArrays(*map(np.copy, arrays))
        dissolve_cohort(apart)
        for row, step in ((rows.CHUNK, expected), (rows.AHEAD, ahead)):
            chunks = dict(zip(numbers, apart.requests[row, running].tolist(), strict=True))
            scheduled = {call.number: new for call, new in (step[1] if step else {}).items()}
            assert {n: chunk for n, chunk in chunks.items() if chunk} == {
                n: new for n, new in scheduled.items() if n in numbers
            }
        assert arrays.counts[rows.FREE_BLOCKS] == reference.n_free
        if not is_step:
            continue

        done = {done.request_id: done for done in engine.end_step(now + 0.5)}
        finished = reference.update()
        for call in [*reference.running, *reference.waiting, *finished]:
            if call.generated:
                first_token.setdefault(call.number, now + 0.5)
        assert sorted(done) == sorted(call.number for call in finished)
        for call in finished:
            assert done[call.number].preemptions == call.preemptions
            assert done[call.number].start_ms == started[call.number]
            assert done[call.number].first_token_ms == first_token[call.number]
        n_finished += len(finished)
        if n_finished == len(calls) and not engine.has_work:
            break
    assert n_finished == len(calls)
    assert arrays.counts[rows.FREE_BLOCKS] == n_blocks


@settings(max_examples=200)
@given(calls=CALLS, limits=LIMITS)
def test_running_ahead_changes_nothing(step_time, calls, limits):
    # Long outputs, so that there are runs of steps alike.
    calls = sorted(((p, 5 * o, *rest) for p, o, *rest in calls), key=lambda call: call[3])
    model = build(step_time, calls, limits)
    block_size = model.engine.block_size
    ends, arrays = [], []
    for is_ahead in (False, True):
        engine = SimulatedEngine(model, capacity=len(calls), prompt_keys=30)
        pending = list(enumerate(calls))
        now, done = 0.0, []
        while pending or engine.has_work:
            if not engine.has_work:
                now = max(now, 7.3 * pending[0][1][3])
            while pending and 7.3 * pending[0][1][3] <= now:
                number, (prompt, output, priority, _, text, shared, stops) = pending.pop(0)
                keys = texts(text, shared, prompt, block_size)
                engine.submit(number, prompt, output, priority, prompt_keys=keys, stops=stops)
            next_ms = 7.3 * pending[0][1][3] if pending else np.inf
            start_ms, step_ms = engine.advance(now, next_ms if is_ahead else now, 2.0)
            now = start_ms + 2.0 * step_ms
            done += [(now, finished) for finished in engine.end_step(now)]
        ends.append(done)
        arrays.append(engine.arrays)
    assert ends[0] == ends[1]
    for name in set(EngineArrays._fields) - {"step", "finished", "room"}:
        np.testing.assert_array_equal(*(getattr(engine, name) for engine in arrays), name)


@settings(max_examples=200)
@given(calls=CALLS, limits=LIMITS, moments=st.sets(st.integers(0, 60), min_size=1))
def test_a_cohort_that_is_dissolved_changes_nothing(step_time, calls, limits, moments):
    model = build(step_time, calls, limits)
    ends = []
    for dissolved in (set(), moments):
        engine = SimulatedEngine(model, capacity=len(calls), prompt_keys=30)
        for number, (prompt, output, priority, _, text, shared, stops) in enumerate(calls):
            keys = texts(text, shared, prompt, model.engine.block_size)
            engine.submit(number, prompt, output, priority, prompt_keys=keys, stops=stops)
        done, moment = [], 0
        while engine.has_work:
            for is_under_way in (False, True):
                if moment in dissolved:
                    dissolve_cohort(engine.arrays)
                    assert engine.arrays.counts[rows.N_COHORT] == 0
                moment += 1
                if is_under_way:
                    done.append((moment, engine.end_step(float(moment))))
                elif not engine_step.begin_step(engine.arrays, float(moment)):
                    break
        ends.append(done)
    assert ends[0] == ends[1]


def test_who_decodes_is_in_the_cohort_and_who_has_prompt_left_is_not(step_time):
    engine = SimulatedEngine(step_time(max_num_batched_tokens=16), capacity=3)
    for number, prompt in enumerate((4, 5, 30)):
        engine.submit(number, prompt_tokens=prompt, output_tokens=3 + number, priority=0)
    sizes = []
    while engine.has_work:
        engine_step.begin_step(engine.arrays, 0.0)
        engine.end_step(0.0)
        sizes.append(int(engine.arrays.counts[rows.N_COHORT]))
    # The third one's prompt takes 7 and 14 and 9 tokens beside what the others take.
    assert sizes == [2, 2, 2, 1, 1, 1, 0]


def test_a_prompt_in_chunks_then_one_token_a_step(step_time):
    model = step_time(max_num_batched_tokens=8)
    engine = SimulatedEngine(model, capacity=1)
    engine.submit(7, prompt_tokens=20, output_tokens=3, priority=0)
    features = []
    while engine.has_work:
        engine_step.begin_step(engine.arrays, 0.0)
        features.append(tuple(engine.arrays.step[:4]))
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

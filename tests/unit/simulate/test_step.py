"""The compiled step against a plain reading of vLLM's rules, step for step, on random traffic."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chimera_train.simulate import step
from chimera_train.simulate.engine import SimulatedEngine, servable


@dataclass(eq=False)
class Call:
    number: int
    prompt: int
    output: int
    priority: int
    computed: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0

    @property
    def tokens(self):
        return self.prompt + self.generated

    @property
    def urgency(self):
        return (self.priority, self.number)


@dataclass
class Reference:
    """``Scheduler.schedule`` and ``update_from_output`` of vLLM 0.32, without what is not modelled.

    The free blocks, the running and the waiting requests are objects in lists, handled in the order
    and with the branches of the original.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    free: int
    chunked: bool
    running: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    scheduled: dict = field(default_factory=dict)

    def needed(self, call, tokens):
        return -(-tokens // self.block_size) - call.blocks

    def schedule(self):
        self.scheduled = {}
        budget = self.max_num_batched_tokens
        preempted = []
        index = 0
        while index < len(self.running) and budget > 0:
            call = self.running[index]
            new = min(call.tokens - call.computed, budget)
            allocated = False
            while True:
                needed = self.needed(call, call.computed + new)
                if needed <= self.free:
                    allocated = True
                    break
                victim = max(self.running, key=lambda c: c.urgency)
                at = self.running.index(victim)
                del self.running[at]
                if at < index:
                    index -= 1
                budget += self.scheduled.pop(victim, 0)
                self.free += victim.blocks
                victim.blocks = victim.computed = 0
                victim.preemptions += 1
                self.waiting.append(victim)
                preempted.append(victim)
                if victim is call:
                    break
            if not allocated:
                break
            self.free -= needed
            call.blocks += needed
            self.scheduled[call] = new
            budget -= new
            index += 1
        if not preempted:
            while self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
                call = min(self.waiting, key=lambda c: c.urgency)
                new = call.tokens
                if not self.chunked and new > budget:
                    break
                new = min(new, budget)
                if self.needed(call, call.tokens) > self.free:
                    break
                needed = self.needed(call, new)
                self.free -= needed
                call.blocks += needed
                self.waiting.remove(call)
                self.running.append(call)
                self.scheduled[call] = new
                budget -= new
        decode = [c for c in self.scheduled if c.generated and c.tokens - c.computed == 1]
        prefill = {c: n for c, n in self.scheduled.items() if c not in decode}
        return (
            sum(prefill.values()),
            len(decode),
            sum(c.computed for c in decode),
            sum(n * c.computed + n * (n + 1) / 2 for c, n in prefill.items()),
        )

    def update(self):
        finished = []
        for call, new in self.scheduled.items():
            call.computed += new
            if call.computed == call.tokens:
                call.generated += 1
                if call.generated == call.output:
                    finished.append(call)
        for call in finished:
            self.running.remove(call)
            self.free += call.blocks
        return finished


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
    reference = Reference(
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
        features = step.schedule_step(engine._limits, *arrays, float(now))
        assert features == pytest.approx(reference.schedule())
        running = engine._queues[step.RUNNING, : engine._counts[step.N_RUNNING]]
        chunks = {
            int(engine._request_id[slot]): int(engine._requests[step.CHUNK, slot])
            for slot in running
        }
        assert list(chunks) == [call.number for call in reference.running]
        expected = {call.number: new for call, new in reference.scheduled.items()}
        assert {number: chunk for number, chunk in chunks.items() if chunk} == expected
        assert engine._counts[step.FREE_BLOCKS] == reference.free
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
    assert engine._counts[step.FREE_BLOCKS] == info.num_kv_blocks - 1


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
        features.append(step.schedule_step(engine._limits, *arrays, 0.0))
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

"""The scheduler's events: a run by hand, a model-based test of its state, and refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chimera_train.errors import EngineError
from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.policy import Chimera, RoundRobin, ShortestQueue
from chimera_train.scheduling.scheduler import Scheduler

SMALL = EngineProfile("small", "m-small", decode_ms_per_token=20.0, max_batch_size=4)  # 5 ms/token
LARGE = EngineProfile("large", "m-large", decode_ms_per_token=40.0, max_batch_size=2)  # 20 ms/token


def request(request_id, program, lengths, confidence=None):
    q = None if confidence is None else np.array(confidence, dtype=np.float64)
    return Request(request_id, program, np.array(lengths, dtype=np.float64), q)


def test_what_outlives_its_prediction_still_counts():
    scheduler = Scheduler([SMALL, LARGE], Chimera(tau=1.0, delta_s=0.1, load="inflight"))
    known = replace(request(1, "p1", [10, 10], [0.9, 0.1]), overrun_tokens=np.array([4.0, 4.0]))
    assert scheduler.admit(known, 0.0).engine == 0
    assert scheduler.pop(0, 0.0) == 1
    in_flight = []
    for tokens in (9, 1, 3, 1, 8, 40):
        scheduler.on_tokens(1, tokens)
        in_flight.append(scheduler.load_ms()[0] / 5.0)
    # 10 expected, then 4 more, 8 more, 16, 32: after 10, 14, 22 and 38 tokens.
    assert in_flight == [1, 4, 1, 8, 16, 8]
    scheduler.on_complete(1)
    scheduler.on_program_end("p1")
    assert not scheduler.load_ms().any()
    # Where nothing is known of it, nothing more is expected.
    scheduler.admit(request(2, "p2", [10, 10], [0.9, 0.1]), 0.0)
    assert scheduler.pop(0, 0.0) == 2
    scheduler.on_tokens(2, 50)
    assert not scheduler.load_ms().any()


def test_a_run_by_hand():
    scheduler = Scheduler([SMALL, LARGE], Chimera(tau=1.0, delta_s=0.1, load="inflight"))

    # Idle: L = (0, 0), a tie; engine 0 is first and 0.9 >= 0.5 + 0.1 moves on to engine 1.
    first = scheduler.admit(request(1, "p1", [100, 50], [0.5, 0.9]), 0.0)
    assert (first.engine, first.reason, first.priority) == (1, "upgrade", 50)
    assert first.load_ms.tolist() == [0.0, 0.0]

    # L = (0, 50 * 20 = 1000): nothing but 0 is within (1 + 1) * 0.
    second = scheduler.admit(request(2, "p2", [120, 60], [0.5, 0.9]), 1.0)
    assert (second.engine, second.reason) == (0, "fastest")
    assert second.load_ms.tolist() == [0.0, 1000.0]

    # L = (120 * 5 = 600, 1000): 1000 <= 1200, so the more confident engine may have it.
    third = scheduler.admit(request(3, "p3", [30, 20], [0.5, 0.9]), 2.0)
    assert (third.engine, third.load_ms.tolist()) == (1, [600.0, 1000.0])

    # 15 tokens stream: L = (600, (50 - 15 + 20) * 20 = 1100).
    assert scheduler.pop(1, 3.0) == 3  # 20 < 50: shortest total job first
    assert scheduler.pop(1, 3.0) == 1
    scheduler.on_tokens(1, 15)
    assert scheduler.load_ms().tolist() == [600.0, 1100.0]

    # p1's next stage keeps its engine without any confidence, and replaces its length.
    scheduler.on_complete(1)
    assert scheduler.load_ms().tolist() == [600.0, 1100.0]
    next_stage = scheduler.admit(request(4, "p1", [0, 10], None), 4.0)
    assert (next_stage.engine, next_stage.reason) == (1, "known_program")
    assert scheduler.load_ms().tolist() == [600.0, 30 * 20.0]

    # More tokens than predicted leave nothing below zero.
    scheduler.on_tokens(3, 25)
    assert scheduler.load_ms().tolist() == [600.0, 10 * 20.0]
    for request_id, program in ((2, "p2"), (3, "p3"), (4, "p1")):
        scheduler.pop(0, 5.0)
        scheduler.pop(1, 5.0)
        scheduler.on_complete(request_id)
        scheduler.on_program_end(program)
    assert scheduler.load_ms().tolist() == [0.0, 0.0]


def test_the_load_may_include_the_programs_own_work():
    scheduler = Scheduler([SMALL, LARGE], Chimera(tau=1.0, delta_s=0.1, load="inflight+self"))
    # L = (100 * 5, 60 * 20): 1200 > 1000, although the pool is idle.
    decision = scheduler.admit(request(1, "p1", [100, 60], [0.5, 0.9]), 0.0)
    assert (decision.engine, decision.load_ms.tolist()) == (0, [500.0, 1200.0])


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.floats(0, 1), st.data())
def test_a_homogeneous_pool_is_plain_shortest_total_job_first(lengths, q, data):
    tau = data.draw(st.one_of(st.floats(0, 10), st.just(math.inf)))
    delta_s = data.draw(st.floats(0, 1))
    load = data.draw(st.sampled_from(["inflight", "inflight+self"]))
    policy = Chimera(tau=tau, delta_s=delta_s, load=load, aging=10**6, window=100)
    scheduler = Scheduler([SMALL, SMALL, SMALL], policy)
    queues = [[], [], []]
    for i, length in enumerate(lengths):
        least = int(np.argmin(scheduler.load_ms()))
        decision = scheduler.admit(request(i, f"p{i}", [length] * 3, [q] * 3), 0.0)
        assert decision.engine == least
        queues[least].append((length, i))
    for engine, queue in enumerate(queues):
        assert [scheduler.pop(engine, 0.0) for _ in queue] == [i for _, i in sorted(queue)]


class AnyTraffic(RuleBasedStateMachine):
    """Random events; the loads always equal a plain sum over a dictionary of programs."""

    def __init__(self):
        super().__init__()
        policy = Chimera(window=2, aging=2)
        self.scheduler = Scheduler([SMALL, LARGE], policy)
        self.up = [True, True]
        self.programs = {}  # id -> [engine or None, remaining tokens]
        self.live = {}  # id -> (program, engine)
        self.queued = [[], []]
        self.running = [[], []]
        self.n = 0

    @precondition(lambda self: any(self.up))
    @rule(program=st.integers(0, 5), lengths=st.lists(st.floats(0, 500), min_size=2, max_size=2))
    def admit(self, program, lengths):
        program = f"p{program}"
        known = self.programs.get(program, [None])[0]
        assert self.scheduler.engine_of(program) == known
        q = None if known is not None else [0.5, 0.8]
        decision = self.scheduler.admit(request(self.n, program, lengths, q), 0.0)
        assert self.up[decision.engine]
        if known is not None:
            assert decision.engine == known
        self.programs[program] = [decision.engine, round(lengths[decision.engine])]
        self.live[self.n] = (program, decision.engine)
        self.queued[decision.engine].append(self.n)
        self.n += 1

    @rule(engine=st.integers(0, 1))
    def pop(self, engine):
        popped = self.scheduler.pop(engine, 0.0)
        if not self.queued[engine] or len(self.running[engine]) == 2:
            assert popped is None
        else:
            self.queued[engine].remove(popped)
            self.running[engine].append(popped)

    def pick(self, data, lists):
        ids = [request_id for requests in lists for request_id in requests]
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule(data=st.data(), tokens=st.integers(0, 400))
    def tokens(self, data, tokens):
        picked = self.pick(data, self.running)
        if picked is not None:
            self.scheduler.on_tokens(picked, tokens)
            program, engine = self.live[picked]
            state = self.programs.get(program)
            if state is not None and state[0] == engine:
                state[1] = max(state[1] - tokens, 0)

    @rule(data=st.data())
    def complete(self, data):
        picked = self.pick(data, self.running)
        if picked is not None:
            self.scheduler.on_complete(picked)
            self.running[self.live.pop(picked)[1]].remove(picked)

    @rule(data=st.data())
    def fail(self, data):
        picked = self.pick(data, self.running + self.queued)
        if picked is not None:
            self.scheduler.on_fail(picked)
            program, engine = self.live.pop(picked)
            queue = self.running if picked in self.running[engine] else self.queued
            queue[engine].remove(picked)
            if self.programs.get(program, [None])[0] == engine:
                self.programs[program][1] = 0

    @rule(program=st.integers(0, 5))
    def program_end(self, program):
        program = f"p{program}"
        if not any(owner == program for owner, _ in self.live.values()):
            self.scheduler.on_program_end(program)
            self.programs.pop(program, None)

    @rule(engine=st.integers(0, 1))
    def down(self, engine):
        assert self.scheduler.on_engine_down(engine) == self.queued[engine]
        self.up[engine] = False
        for request_id in self.queued[engine]:
            del self.live[request_id]
        self.queued[engine] = []
        for state in self.programs.values():
            if state[0] == engine:
                state[:] = [None, 0]

    @rule(engine=st.integers(0, 1))
    def back(self, engine):
        self.scheduler.on_engine_up(engine)
        self.up[engine] = True

    @invariant()
    def state_is_exact(self):
        tokens = [0, 0]
        for engine, remaining in self.programs.values():
            if engine is not None:
                tokens[engine] += remaining
        assert self.scheduler.load_ms().tolist() == [tokens[0] * 5.0, tokens[1] * 20.0]
        for engine in (0, 1):
            assert self.scheduler.outstanding(engine) == len(self.running[engine])
            assert self.scheduler.queued(engine) == len(self.queued[engine])

    def teardown(self):
        for request_id in list(self.live):
            self.scheduler.on_fail(request_id)
        for program in self.programs:
            self.scheduler.on_program_end(program)
        assert self.scheduler.load_ms().tolist() == [0.0, 0.0]


TestAnyTraffic = AnyTraffic.TestCase
TestAnyTraffic.settings = settings(max_examples=50, stateful_step_count=40)


def test_round_robin_counts_programs_not_stages():
    scheduler = Scheduler([SMALL, LARGE], RoundRobin())
    engines = [
        scheduler.admit(request(i, program, [0, 0]), 0.0).engine
        for i, program in enumerate(["a", "a", "b", "b", "b", "c"])
    ]
    assert engines == [0, 0, 1, 1, 1, 0]


def test_shortest_queue_counts_waiting_and_running():
    scheduler = Scheduler([SMALL, LARGE], ShortestQueue())
    for i, program in enumerate("abc"):
        scheduler.admit(request(i, program, [0, 0]), 0.0)  # engines 0, 1, 0
    assert scheduler.pop(0, 0.0) == 0
    assert scheduler.admit(request(3, "d", [0, 0]), 0.0).engine == 1
    scheduler.on_complete(0)
    assert scheduler.admit(request(4, "e", [0, 0]), 0.0).engine == 0


def test_first_come_first_served_sends_equal_priorities():
    scheduler = Scheduler([SMALL], RoundRobin(order="fcfs"))
    decisions = [scheduler.admit(request(i, f"p{i}", [100 - i]), 0.0) for i in range(3)]
    assert [d.priority for d in decisions] == [0, 0, 0]
    assert [scheduler.pop(0, 0.0) for _ in range(3)] == [0, 1, 2]


def test_the_window_is_the_batch_unless_set():
    by_batch = Scheduler([SMALL], RoundRobin())
    by_hand = Scheduler([SMALL], RoundRobin(window=1))
    for scheduler, expected in ((by_batch, 4), (by_hand, 1)):
        for i in range(6):
            scheduler.admit(request(i, f"p{i}", [0]), 0.0)
        popped = [scheduler.pop(0, 0.0) for _ in range(6)]
        assert popped == [*range(expected), *[None] * (6 - expected)]
        scheduler.on_complete(0)
        assert scheduler.pop(0, 0.0) == expected


@pytest.mark.parametrize(
    ("policy", "confidence", "lengths"),
    [
        (RoundRobin(), False, False),
        (RoundRobin(order="stjf"), False, True),
        (ShortestQueue(), False, False),
        (Chimera(order="fcfs"), True, True),
    ],
)
def test_what_a_policy_needs(policy, confidence, lengths):
    scheduler = Scheduler([SMALL], policy)
    assert (scheduler.needs_confidence, scheduler.needs_lengths) == (confidence, lengths)


def test_no_engine_up_is_an_engine_error_and_queues_nothing():
    scheduler = Scheduler([SMALL], RoundRobin())
    scheduler.on_engine_down(0)
    with pytest.raises(EngineError, match="up"):
        scheduler.admit(request(0, "p", [1]), 0.0)
    scheduler.on_engine_up(0)
    assert scheduler.admit(request(0, "p", [1]), 0.0).engine == 0


@pytest.mark.parametrize(
    "bad",
    [
        request(0, "new", [1.0, 1.0], [0.5, 0.5]),  # the id is live
        request(1, "new", [1.0], [0.5, 0.5]),
        request(1, "new", [1.0, math.nan], [0.5, 0.5]),
        request(1, "new", [1.0, math.inf], [0.5, 0.5]),
        request(1, "new", [1.0, -1.0], [0.5, 0.5]),
        request(1, "new", [1.0, 1.0], None),
        request(1, "new", [1.0, 1.0], [0.5]),
    ],
)
def test_an_unusable_request_is_refused_and_changes_nothing(bad):
    scheduler = Scheduler([SMALL, LARGE], Chimera())
    scheduler.admit(request(0, "p", [10.0, 10.0], [0.5, 0.5]), 0.0)
    before = scheduler.load_ms().tolist()
    with pytest.raises(ValueError):
        scheduler.admit(bad, 0.0)
    assert scheduler.load_ms().tolist() == before
    assert scheduler.engine_of("new") is None
    assert scheduler.queued(0) + scheduler.queued(1) == 1

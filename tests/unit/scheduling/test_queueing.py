"""Queue order against a list that is sorted anew at every pop, and the bound that aging gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.scheduling import queueing
from chimera_train.scheduling.state import empty_state

# A key to add with, or None to pop.
TRAFFIC = st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=80)


class Queue:
    """That of the second of two engines."""

    def __init__(self, aging):
        self.aging = aging
        self.state = empty_state([1.0, 1.0], [1, 1], programs=1, requests=100)

    def __len__(self):
        return int(self.state.queue_length[1])

    def add(self, request, key):
        queueing.add(self.state, 1, request, key)

    def pop(self):
        return queueing.pop(self.state, 1, self.aging)

    def remove(self, request):
        queueing.remove(self.state, 1, request)


def serve(traffic, aging):
    """Ids in the order they are popped, with what was waiting (id -> key) before each pop."""
    queue = Queue(aging)
    waiting = {}
    for request_id, key in enumerate(traffic):
        if key is not None:
            queue.add(request_id, key)
            waiting[request_id] = key
        elif waiting:
            before = dict(waiting)
            served = queue.pop()
            del waiting[served]
            yield served, before
        assert len(queue) == len(waiting)


@given(TRAFFIC, st.integers(0, 5))
def test_order_and_promotion(traffic, aging):
    overtaken = dict.fromkeys(range(len(traffic)), 0)
    for served, waiting in serve(traffic, aging):
        promoted = [r for r in waiting if overtaken[r] >= aging]
        assert served == (
            min(promoted) if promoted else min(waiting, key=lambda r: (waiting[r], r))
        )
        for request in waiting:
            overtaken[request] += request < served


@given(TRAFFIC, st.integers(0, 5))
def test_nobody_is_overtaken_more_than_aging_times(traffic, aging):
    overtaken = dict.fromkeys(range(len(traffic)), 0)
    for served, waiting in serve(traffic, aging):
        for request in waiting:
            overtaken[request] += request < served
    assert all(times <= aging for times in overtaken.values())


@given(TRAFFIC)
def test_immediate_promotion_and_equal_keys_are_first_come_first_served(traffic):
    assert all(served == min(waiting) for served, waiting in serve(traffic, 0))
    equal = [None if key is None else 1 for key in traffic]
    assert all(served == min(waiting) for served, waiting in serve(equal, 10**9))


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 4), st.booleans()))), st.integers(0, 5)
)
def test_those_behind_are_a_queue_of_their_own(traffic, aging):
    """Served while the other is empty, each in the order that it has by itself."""
    both, front, back = Queue(aging), Queue(aging), Queue(aging)
    for request, key in enumerate(traffic):
        if key is not None:
            own = back if key[1] else front
            own.add(request, key[0])
            both.add(request, key[0] + queueing.BEHIND * key[1])
        elif len(both):
            assert queueing.only_behind(both.state, 1) == (len(front) == 0)
            assert both.pop() == (front.pop() if len(front) else back.pop())


def test_remove():
    queue = Queue(aging=16)
    for request, key in enumerate([5, 1, 4, 2, 3]):
        queue.add(request, key)
    queue.remove(3)
    assert [queue.pop() for _ in range(4)] == [1, 4, 2, 0]
    assert len(queue) == 0


@pytest.mark.parametrize("aging", [2, 3])
def test_a_long_job_among_short_ones_waits_for_exactly_aging_of_them(aging):
    queue = Queue(aging)
    queue.add(0, 1000)
    served = []
    for request_id in range(1, 10):
        queue.add(request_id, 1)
        served.append(queue.pop())
    assert served.index(0) == aging

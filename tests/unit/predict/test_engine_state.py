import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.engine_state import Resident, empty_engine, engine_with


def test_requests_are_laid_out_as_the_engine_step_reads_them(step_time):
    info = step_time(num_kv_blocks=11).engine
    running = [
        Resident(3, 40, 9, priority=2, computed_tokens=32, chunk_tokens=8),
        Resident(1, 10, 9, priority=2, computed_tokens=12, generated_tokens=3),
    ]
    waiting = [
        Resident(5, 7, 2, priority=1),
        Resident(4, 50, 6, priority=1, cached_tokens=33),
        Resident(2, 9, 8, priority=0, generated_tokens=4),
    ]
    state = engine_with(info, running, waiting)
    # 40 tokens take 3 blocks of 16 and 12 take 1; one of the 11 is vLLM's null block.
    assert state.counts[:4].tolist() == [2, 3, 0, 10 - 4]
    requests, queues = state.requests, state.queues
    assert requests[rows.ARRIVAL, queues[rows.RUNNING, :2]].tolist() == [3, 1]
    assert requests[rows.ARRIVAL, queues[rows.WAITING, :3]].tolist() == [2, 4, 5]
    assert requests[rows.BLOCKS].tolist() == [3, 1, 0, 0, 0]
    assert requests[rows.CHUNK].tolist() == [8, 0, 0, 0, 0]
    assert requests[rows.CACHED].tolist() == [0, 0, 0, 33, 0]
    assert requests[rows.GENERATED].tolist() == [0, 3, 0, 0, 4]


def test_priorities_are_nothing_to_an_engine_that_serves_in_order_of_arrival(step_time):
    info = step_time(scheduling_policy="fcfs").engine
    state = engine_with(info, [], [Resident(2, 5, 1), Resident(1, 5, 1, priority=9)])
    order = state.queues[rows.WAITING, :2]
    assert state.requests[rows.ARRIVAL, order].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("resident", "message"),
    [
        (Resident(1, 100, 5, computed_tokens=90), "2 KV blocks more than the engine's 4"),
        (Resident(1, 20, 5, computed_tokens=20), "20 are computed and 0 under way"),
        (Resident(1, 20, 5, computed_tokens=10, chunk_tokens=11), "10 are computed and 11 under"),
    ],
)
def test_a_state_that_cannot_be_is_refused(step_time, resident, message):
    with pytest.raises(DataError, match=message):
        engine_with(step_time(num_kv_blocks=5).engine, [resident], [])


def test_an_empty_engine_has_all_its_memory(step_time):
    state = empty_engine(step_time(num_kv_blocks=5).engine, 3)
    assert state.counts[rows.FREE_BLOCKS] == 4
    assert not np.any(state.requests)

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.scheduling.baselines import fewest_requests, next_in_turn


def test_turns_pass_over_engines_that_are_down():
    up = np.array([True, False, True])
    assert [next_in_turn(up, last) for last in (2, 0, 1)] == [0, 2, 2]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=6
    ),
    st.data(),
)
def test_fewest_requests_takes_equals_in_turn(engines, data):
    outstanding, queued, up = (np.array(column) for column in zip(*engines, strict=True))
    up[data.draw(st.integers(0, len(engines) - 1))] = True
    last = data.draw(st.integers(0, len(engines) - 1))
    chosen = fewest_requests(outstanding, queued, up, last)
    n_requests = outstanding + queued
    ties = up & (n_requests == n_requests[up].min())
    assert chosen == next_in_turn(ties, last)

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.simulate.pending import no_pending, pop, push


@given(st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=60))
def test_the_earliest_comes_first_and_equals_in_turn(pushes):
    pending = no_pending(60)
    expected = []
    for program, ms in enumerate(pushes):
        if ms is not None:
            push(pending, float(ms), program)
            expected.append((ms, program))
        elif expected:
            expected.sort()
            assert pending.ms[0] == expected[0][0]
            assert pop(pending) == expected.pop(0)[1]
    assert pending.ms[0] == (min(expected)[0] if expected else np.inf)

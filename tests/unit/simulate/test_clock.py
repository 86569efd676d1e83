"""Two engines on one device, and one beside it, by hand."""

import numpy as np

from chimera_train.simulate.clock import StepClock


def begin(clock, engine, now_ms, step_ms):
    clock.busy(engine, now_ms)
    clock.begin(engine, now_ms, step_ms)


def test_a_step_changes_pace_when_another_engine_becomes_busy_or_idle():
    clock = StepClock([0, 0, None], [[1.0, 2.0]])
    begin(clock, 0, 0.0, 10.0)
    begin(clock, 2, 0.0, 100.0)
    assert clock.next_end_ms() == 10.0
    # At 4, 6 ms are left at full speed: they take 12 at half speed.
    begin(clock, 1, 4.0, 3.0)
    assert clock.next_end_ms() == 4.0 + 3.0 * 2.0
    assert clock.pop() == 1
    clock.idle(1, 10.0)
    # From 4 to 10 half of 6 ms passed: 3 are left, at full speed again.
    assert clock.next_end_ms() == 13.0
    assert clock.pop() == 0
    clock.idle(0, 13.0)
    assert clock.next_end_ms() == 100.0
    assert clock.pop() == 2
    clock.idle(2, 100.0)
    assert clock.next_end_ms() == np.inf
    assert clock.busy_ms.tolist() == [13.0, 6.0, 100.0]


def test_the_next_step_of_a_busy_engine_keeps_the_pace():
    clock = StepClock([0, 0], [[1.0, 1.5]])
    begin(clock, 0, 0.0, 10.0)
    begin(clock, 1, 0.0, 20.0)
    assert clock.next_end_ms() == 15.0
    assert clock.pop() == 0
    assert not clock.stepping(0)
    begin(clock, 0, 15.0, 10.0)
    assert (clock.slowdown(0), clock.slowdown(1)) == (1.5, 1.5)
    assert clock.next_end_ms() == 30.0
    assert {clock.pop(), clock.pop()} == {0, 1}

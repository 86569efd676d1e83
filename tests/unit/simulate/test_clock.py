"""Two engines on one device, and one beside it, by hand."""

import numpy as np

from chimera_train.simulate import clock as clocks


def begin(clock, engine, now_ms, step_ms):
    clocks.become_busy(clock, engine, now_ms)
    clocks.begin(clock, engine, now_ms, step_ms)


def next_end_ms(clock):
    return clock.end_ms[clocks.next_engine(clock)]


def pop(clock):
    engine = clocks.next_engine(clock)
    clocks.end(clock, engine)
    return engine


def test_a_step_changes_pace_when_another_engine_becomes_busy_or_idle():
    clock = clocks.step_clock([0, 0, -1], [[1.0, 2.0]])
    begin(clock, 0, 0.0, 10.0)
    begin(clock, 2, 0.0, 100.0)
    assert next_end_ms(clock) == 10.0
    # At 4, 6 ms are left at full speed: they take 12 at half speed.
    begin(clock, 1, 4.0, 3.0)
    assert next_end_ms(clock) == 4.0 + 3.0 * 2.0
    assert pop(clock) == 1
    clocks.become_idle(clock, 1, 10.0)
    # From 4 to 10 half of 6 ms passed: 3 are left, at full speed again.
    assert next_end_ms(clock) == 13.0
    assert pop(clock) == 0
    clocks.become_idle(clock, 0, 13.0)
    assert next_end_ms(clock) == 100.0
    assert pop(clock) == 2
    clocks.become_idle(clock, 2, 100.0)
    assert next_end_ms(clock) == np.inf
    assert clock.busy_ms.tolist() == [13.0, 6.0, 100.0]


def test_the_next_step_of_a_busy_engine_keeps_the_pace():
    clock = clocks.step_clock([0, 0], [[1.0, 1.5]])
    begin(clock, 0, 0.0, 10.0)
    begin(clock, 1, 0.0, 20.0)
    assert next_end_ms(clock) == 15.0
    assert pop(clock) == 0
    begin(clock, 0, 15.0, 10.0)
    assert (clocks.slowdown(clock, 0), clocks.slowdown(clock, 1)) == (1.5, 1.5)
    assert next_end_ms(clock) == 30.0
    assert {pop(clock), pop(clock)} == {0, 1}


def test_a_step_changes_pace_with_its_engines_factor_and_a_stopped_one_is_over():
    clock = clocks.step_clock([0, 0, -1], [[1.0, 2.0]])
    begin(clock, 0, 0.0, 10.0)
    begin(clock, 1, 0.0, 10.0)
    clocks.set_factor(clock, 0, 3.0, 8.0)
    # 4 ms of the step are done; the other 6 take six times as long.
    assert (clock.end_ms[0], clock.end_ms[1]) == (8.0 + 36.0, 20.0)
    clocks.stop(clock, 1, 14.0)
    # 5 are left at a third of the speed.
    assert (clock.end_ms[0], clock.end_ms[1]) == (14.0 + 15.0, np.inf)
    assert clock.busy_ms[1] == 14.0
    clocks.stop(clock, 1, 15.0)
    clocks.set_factor(clock, 1, 2.0, 15.0)
    assert (clock.busy_ms[1], clock.end_ms[1]) == (14.0, np.inf)
    clocks.set_factor(clock, 0, 1.0, 17.0)
    assert next_end_ms(clock) == 17.0 + 4.0


def test_devices_have_curves_of_their_own():
    clock = clocks.step_clock([0, 1, 0, 1, 1], [[1.0, 2.0], [1.0, 1.5, 1.75]])
    for engine in range(5):
        clocks.become_busy(clock, engine, 0.0)
    assert [clocks.slowdown(clock, engine) for engine in range(5)] == [2.0, 1.75, 2.0, 1.75, 1.75]
    assert clocks.shares(clock, 0)
    assert not clocks.shares(clocks.step_clock([-1], []), 0)

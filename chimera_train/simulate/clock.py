"""When the step under way at each engine ends, where engines that share a device slow each other.

While k engines of a device are busy, each proceeds at 1/curve[k - 1] of its own speed, and at all
times at 1/factor of it; a step under way changes pace when k or its engine's factor changes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place

__all__ = [
    "StepClock",
    "become_busy",
    "become_idle",
    "begin",
    "end",
    "next_engine",
    "set_factor",
    "shares",
    "slowdown",
    "step_clock",
    "stop",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class StepClock(NamedTuple):
    """The steps under way and the busy time of every engine; times in ms, shape (n_engines,).

    Attributes:
        device: number of the engine's device, -1 if it shares none, int64.
        curves: of each device the slow-down of its engines by how many are busy, from one on,
            shape (n_devices, at least as many as any has).
        factor: of the engine's step times, whatever its device does.
        n_busy: engines of each device that are busy, int64, shape (n_devices,).
        busy_ms: for how long the engine was busy, up to when it last became idle.
        busy_since_ms: NaN while idle.
        end_ms: when the step under way ends at the present pace; infinite if none is.
        left_ms: what remained of it at ``at_ms``, at the engine's own speed.
        at_ms: when that was.
    """

    device: Ints
    curves: Floats
    factor: Floats
    n_busy: Ints
    busy_ms: Floats
    busy_since_ms: Floats
    end_ms: Floats
    left_ms: Floats
    at_ms: Floats


def step_clock(devices: Sequence[int], curves: Sequence[Sequence[float]]) -> StepClock:
    """A clock of idle engines; the arguments are ``StepClock.device`` and ``curves``."""
    n = len(devices)
    longest = max(map(len, curves), default=0)
    return StepClock(
        device=np.array(devices, dtype=np.int64),
        curves=np.array([[*curve, *[np.nan] * (longest - len(curve))] for curve in curves]).reshape(
            len(curves), longest
        ),
        factor=np.ones(n),
        n_busy=np.zeros(len(curves), dtype=np.int64),
        busy_ms=np.zeros(n),
        busy_since_ms=np.full(n, np.nan),
        end_ms=np.full(n, np.inf),
        left_ms=np.zeros(n),
        at_ms=np.zeros(n),
    )


@in_place
def shares(clock: StepClock, engine: int) -> bool:
    """Whether the engine's pace depends on others."""
    return clock.device[engine] >= 0


@in_place
def slowdown(clock: StepClock, engine: int) -> float:
    """The factor of the engine's step times at present, which is busy."""
    device = clock.device[engine]
    if device < 0:
        return clock.factor[engine]
    return clock.factor[engine] * clock.curves[device, clock.n_busy[device] - 1]


@in_place
def become_busy(clock: StepClock, engine: int, now_ms: float) -> None:
    """The engine has work from now on; nothing changes if it had."""
    if np.isnan(clock.busy_since_ms[engine]):
        clock.busy_since_ms[engine] = now_ms
        _change_pace(clock, engine, 1, now_ms)


@in_place
def become_idle(clock: StepClock, engine: int, now_ms: float) -> None:
    """The engine, which was busy, has no more work."""
    clock.busy_ms[engine] += now_ms - clock.busy_since_ms[engine]
    clock.busy_since_ms[engine] = np.nan
    _change_pace(clock, engine, -1, now_ms)


@in_place
def stop(clock: StepClock, engine: int, now_ms: float) -> None:
    """The engine is idle from now on; a step under way is cut off."""
    clock.end_ms[engine] = np.inf
    if not np.isnan(clock.busy_since_ms[engine]):
        become_idle(clock, engine, now_ms)


@in_place
def set_factor(clock: StepClock, engine: int, factor: float, now_ms: float) -> None:
    """The engine's steps, that under way too, go at 1/``factor`` of their own speed from now on."""
    _settle(clock, engine, now_ms)
    clock.factor[engine] = factor
    _go_on(clock, engine)


@in_place
def begin(clock: StepClock, engine: int, start_ms: float, step_ms: float) -> None:
    """A step that takes ``step_ms`` at the engine's own speed; the engine is busy."""
    clock.at_ms[engine] = start_ms
    clock.left_ms[engine] = step_ms
    clock.end_ms[engine] = start_ms + step_ms * slowdown(clock, engine)


@in_place
def next_engine(clock: StepClock) -> int:
    """The engine whose step ends next, at its ``end_ms``; any if no step is under way."""
    first = 0
    for engine in range(1, clock.end_ms.size):
        if clock.end_ms[engine] < clock.end_ms[first]:
            first = engine
    return first


@in_place
def end(clock: StepClock, engine: int) -> None:
    """The engine's step is over."""
    clock.end_ms[engine] = np.inf


@in_place
def _change_pace(clock: StepClock, changed: int, change: int, now_ms: float) -> None:
    device = clock.device[changed]
    if device < 0:
        return
    for engine in range(clock.device.size):
        if clock.device[engine] == device:
            _settle(clock, engine, now_ms)
    clock.n_busy[device] += change
    for engine in range(clock.device.size):
        if clock.device[engine] == device:
            _go_on(clock, engine)


@in_place
def _settle(clock: StepClock, engine: int, now_ms: float) -> None:
    """Note what remains of a step that is under way, before its pace changes."""
    if clock.end_ms[engine] < np.inf:
        done_ms = (now_ms - clock.at_ms[engine]) / slowdown(clock, engine)
        clock.left_ms[engine] = max(clock.left_ms[engine] - done_ms, 0.0)
        clock.at_ms[engine] = now_ms


@in_place
def _go_on(clock: StepClock, engine: int) -> None:
    """A step that is under way goes on at the present pace."""
    if clock.end_ms[engine] < np.inf:
        begin(clock, engine, clock.at_ms[engine], clock.left_ms[engine])

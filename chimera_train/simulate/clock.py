"""When the step under way at each engine ends, where engines that share a device slow each other.

While k engines of a device are busy, each proceeds at 1/curve[k - 1] of its own speed; a step under
way changes pace when k changes.
"""

import heapq
from collections.abc import Sequence

import numpy as np

__all__ = ["StepClock"]


class StepClock:
    """The steps under way and the busy time of every engine; times in ms.

    Args:
        devices: of each engine the number of its device, or None if it shares none.
        curves: of each device the slow-down of its engines by how many are busy, from one on.

    Attributes:
        busy_ms: per engine, up to when it last became idle.
    """

    def __init__(self, devices: Sequence[int | None], curves: Sequence[Sequence[float]]) -> None:
        n = len(devices)
        self.busy_ms = np.zeros(n)
        self._devices = devices
        self._curves = curves
        self._n_busy = [0] * len(curves)
        self._busy_since_ms: list[float | None] = [None] * n
        # Of the step under way, left_ms at the engine's own speed remained at at_ms.
        self._stepping = [False] * n
        self._at_ms = [0.0] * n
        self._left_ms = [0.0] * n
        # Forecasts of ends: (ms, engine, version); outdated unless the engine's version agrees.
        self._forecasts: list[tuple[float, int, int]] = []
        self._version = [0] * n

    def shares(self, engine: int) -> bool:
        """Whether the engine's pace depends on others."""
        return self._devices[engine] is not None

    def slowdown(self, engine: int) -> float:
        """The factor of the engine's step times at present, which is busy."""
        device = self._devices[engine]
        return 1.0 if device is None else self._curves[device][self._n_busy[device] - 1]

    def stepping(self, engine: int) -> bool:
        """Whether a step of the engine is under way."""
        return self._stepping[engine]

    def busy(self, engine: int, now_ms: float) -> None:
        """The engine has work from now on; nothing changes if it had."""
        if self._busy_since_ms[engine] is None:
            self._busy_since_ms[engine] = now_ms
            self._change_pace(engine, 1, now_ms)

    def idle(self, engine: int, now_ms: float) -> None:
        """The engine, which was busy, has no more work."""
        since_ms = self._busy_since_ms[engine]
        if since_ms is not None:
            self.busy_ms[engine] += now_ms - since_ms
            self._busy_since_ms[engine] = None
            self._change_pace(engine, -1, now_ms)

    def begin(self, engine: int, start_ms: float, step_ms: float) -> None:
        """A step that takes ``step_ms`` at the engine's own speed; the engine is busy."""
        self._stepping[engine] = True
        self._at_ms[engine] = start_ms
        self._left_ms[engine] = step_ms
        self._forecast(engine)

    def next_end_ms(self) -> float:
        """When the next step ends; infinity if none is under way."""
        while self._forecasts:
            end_ms, engine, version = self._forecasts[0]
            if version == self._version[engine]:
                return end_ms
            heapq.heappop(self._forecasts)
        return np.inf

    def pop(self) -> int:
        """End the step that ends next, which ``next_end_ms`` told; its engine."""
        _, engine, _ = heapq.heappop(self._forecasts)
        self._stepping[engine] = False
        return engine

    def _forecast(self, engine: int) -> None:
        self._version[engine] += 1
        end_ms = self._at_ms[engine] + self._left_ms[engine] * self.slowdown(engine)
        heapq.heappush(self._forecasts, (end_ms, engine, self._version[engine]))

    def _change_pace(self, changed: int, change: int, now_ms: float) -> None:
        device = self._devices[changed]
        if device is None:
            return
        others = [
            engine
            for engine, its_device in enumerate(self._devices)
            if its_device == device and self._stepping[engine]
        ]
        for engine in others:
            done_ms = (now_ms - self._at_ms[engine]) / self.slowdown(engine)
            self._left_ms[engine] = max(self._left_ms[engine] - done_ms, 0.0)
            self._at_ms[engine] = now_ms
        self._n_busy[device] += change
        for engine in others:
            self._forecast(engine)

"""When an engine that fails is left alone, and when it is tried again.

Closed, a breaker lets requests pass. It opens when the engine is lost, or fails several times in a
row. When its wait is over it is half open: one probe decides whether it closes, or stays open for
twice as long.
"""

from collections.abc import Callable
from enum import IntEnum

__all__ = ["Breaker", "State"]


class State(IntEnum):
    """Of a breaker: requests pass; one probe is on its way; none passes."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


class Breaker:
    """Follows the fortunes of one engine.

    The wait doubles with each probe that fails, and with each opening until a client has got an
    answer again, so that an engine that answers probes and fails requests is tried ever more
    rarely; after a probe the first failure opens.

    Args:
        failures: so many in a row open it.
        first_wait_ms: from opening to the first probe.
        longest_wait_ms: which the wait does not exceed.
        clock: the present in ms.
    """

    def __init__(
        self,
        failures: int,
        first_wait_ms: float,
        longest_wait_ms: float,
        clock: Callable[[], float],
    ) -> None:
        self.state = State.CLOSED
        self._limit = failures
        self._first_wait_ms = first_wait_ms
        self._longest_wait_ms = longest_wait_ms
        self._clock = clock
        self._in_a_row = 0
        self._wait_ms = first_wait_ms
        self._probe_at_ms = 0.0

    @property
    def wait_ms(self) -> float:
        """Until the next probe, if it is open; else 0."""
        return max(0.0, self._probe_at_ms - self._clock()) if self.state is State.OPEN else 0.0

    def answered(self) -> None:
        """A client got a whole answer."""
        if self.state is State.CLOSED:
            self._in_a_row = 0
            self._wait_ms = self._first_wait_ms

    def failed(self) -> None:
        """The engine answered that it failed."""
        self._in_a_row += 1
        if self._in_a_row >= self._limit:
            self.lost()

    def lost(self) -> None:
        """The engine went away, or was not there."""
        if self.state is State.CLOSED:
            self._open()

    def begin_probe(self) -> None:
        """The wait is over, and the engine is asked."""
        self.state = State.HALF_OPEN

    def end_probe(self, *, was_answered: bool) -> None:
        """What became of the probe."""
        if was_answered:
            self.state = State.CLOSED
            self._in_a_row = self._limit - 1
        else:
            self._open()

    def _open(self) -> None:
        self.state = State.OPEN
        self._probe_at_ms = self._clock() + self._wait_ms
        self._wait_ms = min(2 * self._wait_ms, self._longest_wait_ms)

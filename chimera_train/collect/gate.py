"""How many requests an endpoint gets at once: as many as asked for, fewer while it refuses some.

Additive increase, multiplicative decrease, as TCP does it: a refusal (429 or 503) halves the limit
and stops all sending for as long as the endpoint asked, a reply raises it by one for each limit's
worth of replies.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["PATIENCE_S", "Gate", "retry_after_s"]

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# An endpoint that refuses everything for longer is not busy but broken.
PATIENCE_S = 900.0


class Gate:
    """Bounds the requests in flight at one endpoint; for one event loop.

    Args:
        most: the limit while nothing is refused.
        clock: seconds that only grow.

    Attributes:
        most: as given.
        limit: the limit now; at least 1.
        refusals: how many requests the endpoint has refused.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = float(most)
        self.refusals = 0
        self.most = most
        self._clock = clock
        self._active = 0
        self._changed = asyncio.Condition()
        self._open_at = self._cut_at = clock()
        self._pause_s = _FIRST_PAUSE_S
        self._refusing_since: float | None = None

    @property
    def is_shut(self) -> bool:
        """Whether the endpoint serves nothing for so long that there is no use in waiting."""
        since = self._refusing_since
        return since is not None and self._open_at - since >= PATIENCE_S

    @asynccontextmanager
    async def passage(self) -> AsyncIterator[None]:
        """Wait for a place, and hold it during the block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._active < int(self.limit))
            self._active += 1
        try:
            while not self.is_shut and (rest_s := self._open_at - self._clock()) > 0:
                await asyncio.sleep(rest_s)
            yield
        finally:
            self._active -= 1
            await asyncio.shield(self._tell())

    def accepted(self) -> None:
        """A request was served."""
        self.limit = min(float(self.most), self.limit + 1 / self.limit)
        self._pause_s = _FIRST_PAUSE_S
        self._refusing_since = None
        now = self._clock()
        if self._open_at - now > PATIENCE_S:  # it serves, so it cannot have meant that
            self._open_at = now + _LONGEST_PAUSE_S

    def refused(self, sent_at: float, wait_s: float | None) -> float:
        """A request that was sent at ``sent_at`` (of the clock) was refused.

        Args:
            sent_at: refusals of requests from before the last cut are of the same congestion.
            wait_s: what the endpoint asked for; None or 0: it did not say.

        Returns:
            Seconds during which nothing is sent.
        """
        now = self._clock()
        self.refusals += 1
        if self._refusing_since is None:
            self._refusing_since = sent_at
        is_new = sent_at >= self._cut_at
        pause_s = wait_s or self._pause_s
        if is_new:
            self.limit = max(1.0, self.limit / 2)
            self._cut_at = now
            self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)
        if is_new or wait_s:
            self._open_at = max(self._open_at, now + pause_s)
        return max(0.0, self._open_at - now)

    async def _tell(self) -> None:
        async with self._changed:
            # One for the place that is free, one for the limit, which may have grown by one.
            self._changed.notify(2)


def retry_after_s(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks to wait (a number or an HTTP date); None: neither."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None

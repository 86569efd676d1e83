"""The order of the requests that wait for one engine, with aging so that none starves."""

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["EngineQueue", "next_in_queue"]


@njit(cache=True)
def next_in_queue(
    key: npt.NDArray[np.float64],
    arrival: npt.NDArray[np.int64],
    overtaken: npt.NDArray[np.int64],
    aging: int,
) -> int:
    """The position of the request to serve next, out of at least one (arrays of shape (n,)).

    The earliest of those that ``aging`` later arrivals have overtaken; if there is none, the least
    ``key``, and the earliest among equals. Since a promoted request yields only to earlier ones,
    nobody is overtaken more than ``aging`` times.
    """
    best = 0
    for position in range(1, key.size):
        promoted = overtaken[position] >= aging
        if promoted != (overtaken[best] >= aging):
            if promoted:
                best = position
        elif promoted or key[position] == key[best]:
            if arrival[position] < arrival[best]:
                best = position
        elif key[position] < key[best]:
            best = position
    return best


class EngineQueue:
    """Requests that wait in our queue for one engine. Not ordered: every pop is one scan."""

    def __init__(self, aging: int) -> None:
        self._aging = aging
        self._n = 0
        self._arrivals = 0
        self._request = np.zeros(16, dtype=np.int64)
        self._key = np.zeros(16, dtype=np.float64)
        self._arrival = np.zeros(16, dtype=np.int64)
        self._overtaken = np.zeros(16, dtype=np.int64)

    def __len__(self) -> int:
        return self._n

    def add(self, request_id: int, key: float) -> None:
        """Queue a request; a smaller ``key`` is served earlier, equals in order of arrival."""
        if self._n == self._key.size:
            self._request = np.resize(self._request, 2 * self._n)
            self._key = np.resize(self._key, 2 * self._n)
            self._arrival = np.resize(self._arrival, 2 * self._n)
            self._overtaken = np.resize(self._overtaken, 2 * self._n)
        self._request[self._n] = request_id
        self._key[self._n] = key
        self._arrival[self._n] = self._arrivals
        self._overtaken[self._n] = 0
        self._arrivals += 1
        self._n += 1

    def pop(self) -> int:
        """Remove and return the id of the next request; the queue is not empty."""
        n = self._n
        arrival, overtaken = self._arrival[:n], self._overtaken[:n]
        position = next_in_queue(self._key[:n], arrival, overtaken, self._aging)
        overtaken += arrival < arrival[position]
        request_id = int(self._request[position])
        self._delete(position)
        return request_id

    def remove(self, request_id: int) -> None:
        """Take out one request that waits here."""
        self._delete(int(np.flatnonzero(self._request[: self._n] == request_id)[0]))

    def drain(self) -> list[int]:
        """Take out every request; their ids in order of arrival."""
        order = np.argsort(self._arrival[: self._n])
        requests: list[int] = self._request[: self._n][order].tolist()
        self._n = 0
        return requests

    def _delete(self, position: int) -> None:
        self._n -= 1
        for column in (self._request, self._key, self._arrival, self._overtaken):
            column[position] = column[self._n]

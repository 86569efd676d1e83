"""Arrivals that something in a simulation has led to, the earliest first: a heap in arrays."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chimera_train.compiled import in_place

__all__ = ["Pending", "no_pending", "pop", "push"]


class Pending(NamedTuple):
    """Entries by time, and among equal times in the order they were pushed.

    Attributes:
        ms: when, shape (capacity + 1,); infinite behind the last entry.
        number: in the order they were pushed, shape (capacity + 1,).
        program: who arrives, shape (capacity + 1,).
        counts: entries there are and entries ever pushed, shape (2,).
    """

    ms: npt.NDArray[np.float64]
    number: npt.NDArray[np.int64]
    program: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def no_pending(capacity: int) -> Pending:
    """Nothing, with room for so many."""
    return Pending(
        np.full(capacity + 1, np.inf),
        np.zeros(capacity + 1, dtype=np.int64),
        np.zeros(capacity + 1, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
    )


@in_place
def push(pending: Pending, ms: float, program: int) -> None:
    """Add an entry; there is room."""
    place = pending.counts[0]
    pending.ms[place] = ms
    pending.number[place] = pending.counts[1]
    pending.program[place] = program
    pending.counts[0] += 1
    pending.counts[1] += 1
    while place > 0 and _is_before(pending, place, (place - 1) // 2):
        _swap(pending, place, (place - 1) // 2)
        place = (place - 1) // 2


@in_place
def pop(pending: Pending) -> int:
    """Take the first entry, which exists, out; its program. Its time was ``ms[0]``."""
    program: int = pending.program[0]
    pending.counts[0] -= 1
    n = pending.counts[0]
    _swap(pending, 0, n)
    pending.ms[n] = np.inf
    place = 0
    while True:
        first = place
        for child in (2 * place + 1, 2 * place + 2):
            if child < n and _is_before(pending, child, first):
                first = child
        if first == place:
            return program
        _swap(pending, place, first)
        place = first


@in_place
def _is_before(pending: Pending, a: int, b: int) -> bool:
    if pending.ms[a] != pending.ms[b]:
        return pending.ms[a] < pending.ms[b]
    return pending.number[a] < pending.number[b]


@in_place
def _swap(pending: Pending, a: int, b: int) -> None:
    pending.ms[a], pending.ms[b] = pending.ms[b], pending.ms[a]
    pending.number[a], pending.number[b] = pending.number[b], pending.number[a]
    pending.program[a], pending.program[b] = pending.program[b], pending.program[a]

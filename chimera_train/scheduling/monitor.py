"""The activity monitor: where each program runs and how much work it still promises (§3.5)."""

import numpy as np

__all__ = ["ActivityMonitor"]

_NOWHERE = -1


class ActivityMonitor:
    """Program → engine and predicted remaining tokens, and their sum P per engine.

    Tokens are whole numbers, so that the sums are exact: when every program has ended, every load
    is exactly zero, however many predictions came and went.

    Attributes:
        in_flight_tokens: P, shape (n_engines,): predicted tokens still to come from the programs
            of each engine.
    """

    def __init__(self, n_engines: int) -> None:
        self.in_flight_tokens = np.zeros(n_engines, dtype=np.int64)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._engine = np.full(16, _NOWHERE, dtype=np.int64)
        self._remaining = np.zeros(16, dtype=np.int64)

    def engine_of(self, program_id: str) -> int | None:
        """The program's engine; None if it has none."""
        slot = self._slots.get(program_id)
        if slot is None or self._engine[slot] == _NOWHERE:
            return None
        return int(self._engine[slot])

    def place(self, program_id: str, engine: int, tokens: int) -> None:
        """The program runs on ``engine`` and ``tokens`` are still to come; replaces what was."""
        slot = self._slots.get(program_id)
        if slot is None:
            slot = self._slots[program_id] = self._new_slot()
        self._drop(slot)
        self._engine[slot] = engine
        self._remaining[slot] = tokens
        self.in_flight_tokens[engine] += tokens

    def stream(self, program_id: str, engine: int, tokens: int) -> None:
        """``tokens`` came from ``engine``; the remaining length never falls below zero.

        Tokens from an engine that the program has left change nothing.
        """
        slot = self._slots.get(program_id)
        if slot is not None and self._engine[slot] == engine:
            seen = min(tokens, int(self._remaining[slot]))
            self._remaining[slot] -= seen
            self.in_flight_tokens[engine] -= seen

    def clear(self, program_id: str, engine: int) -> None:
        """Nothing more is to come from ``engine`` for now; the program keeps its engine."""
        slot = self._slots.get(program_id)
        if slot is not None and self._engine[slot] == engine:
            self._drop(slot)

    def forget(self, program_id: str) -> None:
        """The program has ended; unknown ones are ignored."""
        slot = self._slots.pop(program_id, None)
        if slot is not None:
            self._drop(slot)
            self._engine[slot] = _NOWHERE
            self._free.append(slot)

    def evict(self, engine: int) -> None:
        """Every program of ``engine`` loses it, and the engine its load."""
        on_engine = self._engine == engine
        self._engine[on_engine] = _NOWHERE
        self._remaining[on_engine] = 0
        self.in_flight_tokens[engine] = 0

    def _drop(self, slot: int) -> None:
        if self._engine[slot] != _NOWHERE:
            self.in_flight_tokens[self._engine[slot]] -= self._remaining[slot]
            self._remaining[slot] = 0

    def _new_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self._slots)
        if slot == self._engine.size:
            self._engine = np.concatenate([self._engine, np.full_like(self._engine, _NOWHERE)])
            self._remaining = np.concatenate([self._remaining, np.zeros_like(self._remaining)])
        return slot

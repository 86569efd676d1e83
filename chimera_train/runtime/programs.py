"""The programs that are running: who they are, and what their earlier stages have produced.

A program ends when its client says so, when it is a single request and that is answered, or when
nothing was heard of it for a while. The table is bounded: the longest idle program makes room.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from chimera_train.history import History
from chimera_train.relay.api import ApiError

__all__ = ["Program", "ProgramTable"]


@dataclass(slots=True)
class Program:
    """One program.

    Attributes:
        workflow: as its first request said.
        n_requests: requests seen so far.
        in_flight: requests that are not answered yet.
        history: its answered requests.
        confidence: the router's confidence in each engine's model, shape (n_engines,), from the
            program's first request; None if the policy does not use it.
        touched_ms: when it was last heard of.
        ended: end it as soon as nothing is in flight.
    """

    program_id: str
    workflow: str
    touched_ms: float
    n_requests: int = 0
    in_flight: int = 0
    history: History = field(default_factory=History)
    confidence: npt.NDArray[np.float64] | None = None
    ended: bool = False


class ProgramTable:
    """Programs by id.

    Args:
        limit: programs remembered at once.
        ttl_ms: idle time after which a program has ended.
        on_end: called once with the id of every program that ends.
    """

    def __init__(self, limit: int, ttl_ms: float, on_end: Callable[[str], None]) -> None:
        self._limit = limit
        self._ttl_ms = ttl_ms
        self._on_end = on_end
        # The longest untouched program comes first.
        self._programs: OrderedDict[str, Program] = OrderedDict()

    def __len__(self) -> int:
        return len(self._programs)

    def get(self, program_id: str) -> Program | None:
        """The program called ``program_id``, if it is running."""
        return self._programs.get(program_id)

    def enter(self, program_id: str, workflow: str, now_ms: float) -> Program:
        """A request of a program begins; the program is made if it is new.

        Raises:
            ApiError: 429, the table is full of programs with requests in flight.
        """
        program = self._programs.get(program_id)
        if program is None:
            if len(self._programs) >= self._limit:
                self._make_room()
            program = self._programs[program_id] = Program(program_id, workflow, now_ms)
        program.n_requests += 1
        program.in_flight += 1
        self._touch(program, now_ms)
        return program

    def leave(self, program: Program, history: History, now_ms: float) -> None:
        """A request of ``program`` is over, which makes its history this one."""
        program.in_flight -= 1
        program.history = history
        self._touch(program, now_ms)
        if program.ended and not program.in_flight:
            self._forget(program)

    def end(self, program: Program) -> None:
        """End ``program``, once its requests in flight are answered."""
        program.ended = True
        if not program.in_flight:
            self._forget(program)

    def expire(self, now_ms: float) -> int:
        """End every program that was idle too long; returns how many."""
        old = []
        for program in self._programs.values():
            if now_ms - program.touched_ms < self._ttl_ms:
                break
            if not program.in_flight:
                old.append(program)
        for program in old:
            self._forget(program)
        return len(old)

    def _touch(self, program: Program, now_ms: float) -> None:
        program.touched_ms = now_ms
        self._programs.move_to_end(program.program_id)

    def _forget(self, program: Program) -> None:
        del self._programs[program.program_id]
        self._on_end(program.program_id)

    def _make_room(self) -> None:
        for program in self._programs.values():
            if not program.in_flight:
                self._forget(program)
                return
        raise ApiError(
            429,
            "Too many programs have requests in flight; try again later.",
            kind="rate_limit_error",
            code="too_many_programs",
            headers={"retry-after": "1"},
        )

"""The programs of a recording: who they are, when they end, and what a restart knows of them."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from chimera_train.collect.record.pieces import Brief

__all__ = ["Program", "Programs"]


@dataclass(slots=True)
class Program:
    """One program.

    Attributes:
        program_id: as stored.
        name: as its client calls it.
        touched_ms: when it was last heard of, since 1970.
        n_requests: requests that began, which gives each its place.
        in_flight: requests that are not answered yet.
        ended: no further request belongs to it.
        engines: which engine has its context, by model.
    """

    program_id: str
    name: str
    touched_ms: float
    n_requests: int = 0
    in_flight: int = 0
    ended: bool = False
    engines: dict[str, int] = field(default_factory=dict)


class Programs:
    """The latest program of every name that clients use.

    A program ends when its client says so or posts its outcome, and when nothing was heard of it
    for ``ttl_ms``. It keeps its name, for its outcome may come later; a request under that name
    begins another program, whose id is the name with a random suffix.
    """

    def __init__(self, ttl_ms: float) -> None:
        self._ttl_ms = ttl_ms
        self._latest: dict[str, Program] = {}

    def restore(self, briefs: Iterable[Brief]) -> None:
        """Know what a journal knows: ``briefs`` of its pieces, oldest first."""
        for brief in briefs:
            program = self._latest.get(brief.name)
            if program is None or program.program_id != brief.program_id:
                program = Program(brief.program_id, brief.name, brief.end_ms)
                self._latest[brief.name] = program
            program.touched_ms = max(program.touched_ms, brief.end_ms)
            if brief.kind == "request":
                program.n_requests = max(program.n_requests, brief.place + 1)
            program.ended |= brief.is_last

    def get(self, name: str) -> Program | None:
        """The latest program of that name, whether it has ended or not."""
        return self._latest.get(name)

    def has_ended(self, program: Program, now_ms: float) -> bool:
        """Whether no further request belongs to ``program``."""
        idle = not program.in_flight and now_ms - program.touched_ms >= self._ttl_ms
        return program.ended or idle

    def enter(self, name: str, now_ms: float) -> tuple[Program, int]:
        """A request begins: its program, which is made if need be, and its place in it."""
        program = self._latest.get(name)
        if program is None:
            program = self._latest[name] = Program(name, name, now_ms)
        elif self.has_ended(program, now_ms):
            again = f"{name}#{uuid.uuid4().hex[:12]}"
            program = self._latest[name] = Program(again, name, now_ms)
        program.n_requests += 1
        program.in_flight += 1
        program.touched_ms = now_ms
        return program, program.n_requests - 1

    def leave(self, program: Program, now_ms: float) -> None:
        """A request of ``program`` is over."""
        program.in_flight -= 1
        program.touched_ms = now_ms

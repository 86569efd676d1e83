"""What befalls engines during a simulation: one is down for a while, or slower."""

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, FiniteFloat

from chimera_train.config import Settings
from chimera_train.errors import ConfigError

__all__ = [
    "DOWN",
    "PACE",
    "UP",
    "Down",
    "EngineEvent",
    "EngineEvents",
    "Slow",
    "Timeline",
    "timeline",
]

# Values of ``Timeline.kind``.
UP, PACE, DOWN = range(3)


class _Spell(Settings):
    """What is so at one engine for a while.

    Attributes:
        engine: its name.
        at_s: when it begins, in seconds of simulated time.
        for_s: how long it lasts; null is for ever.
    """

    engine: str
    at_s: FiniteFloat = Field(ge=0)
    for_s: FiniteFloat | None = Field(default=None, gt=0)

    @property
    def at_ms(self) -> float:
        """When it begins."""
        return 1000.0 * self.at_s

    @property
    def until_ms(self) -> float:
        """When it is over; it is no more in that moment."""
        return np.inf if self.for_s is None else 1000.0 * self.at_s + 1000.0 * self.for_s


class Down(_Spell):
    """The engine is away: what it held is lost, its KV cache too."""

    kind: Literal["down"]


class Slow(_Spell):
    """Every step of the engine takes ``factor`` times as long; one under way changes its pace."""

    kind: Literal["slow"]
    factor: FiniteFloat = Field(ge=1)


EngineEvent = Annotated[Down | Slow, Field(discriminator="kind")]


def _apart(events: tuple[EngineEvent, ...]) -> tuple[EngineEvent, ...]:
    ordered = sorted(events, key=lambda event: (event.engine, event.kind, event.at_ms))
    for one, after in itertools.pairwise(ordered):
        if (one.engine, one.kind) == (after.engine, after.kind) and after.at_ms < one.until_ms:
            raise ValueError(
                f"'{after.engine}' is already {one.kind} at {after.at_s:g} s, when it would be so"
                " again: make one event of the two"
            )
    return events


EngineEvents = Annotated[tuple[EngineEvent, ...], AfterValidator(_apart)]
"""Events of which none overlaps another one of the same engine and kind."""


class Timeline(NamedTuple):
    """What changes when, in order; shape (n + 1,), of which the last is never.

    Attributes:
        at_ms: when; infinite for the last.
        engine: at which engine.
        kind: UP, PACE or DOWN.
        factor: of its step times from then on, for PACE.
    """

    at_ms: npt.NDArray[np.float64]
    engine: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    factor: npt.NDArray[np.float64]


class _Change(NamedTuple):
    at_ms: float
    begins: bool
    engine: int
    kind: int
    factor: float


def timeline(events: Sequence[EngineEvent], engines: Sequence[str]) -> Timeline:
    """What ``events`` change at ``engines``, by name; what ends at a moment before what begins.

    Raises:
        ConfigError: an event's engine is not among them, or no engine would be up.
    """
    changes = [change for event in events for change in _changes(event, engines)]
    changes.sort(key=operator.attrgetter("at_ms", "begins"))
    up = np.ones(len(engines), dtype=np.bool_)
    for change in changes:
        if change.kind != PACE:
            up[change.engine] = change.kind == UP
        if not up.any():
            raise ConfigError(
                f"events: no engine of {', '.join(engines)} would be up at"
                f" {change.at_ms / 1000:g} s, and nobody could serve: leave one up."
            )
    return Timeline(
        at_ms=np.array([*(change.at_ms for change in changes), np.inf]),
        engine=np.array([*(change.engine for change in changes), 0], dtype=np.int64),
        kind=np.array([*(change.kind for change in changes), UP], dtype=np.int64),
        factor=np.array([*(change.factor for change in changes), 1.0]),
    )


def _changes(event: EngineEvent, engines: Sequence[str]) -> Iterator[_Change]:
    if event.engine not in engines:
        raise ConfigError(
            f"events: '{event.engine}' is none of the pool's engines ({', '.join(engines)})."
        )
    engine = engines.index(event.engine)
    begin, end = (PACE, PACE) if isinstance(event, Slow) else (DOWN, UP)
    factor = event.factor if isinstance(event, Slow) else 1.0
    if event.at_ms == event.until_ms:
        return  # too short for a number, and its end would come before its beginning
    yield _Change(event.at_ms, True, engine, begin, factor)
    if event.until_ms < np.inf:
        yield _Change(event.until_ms, False, engine, end, 1.0)

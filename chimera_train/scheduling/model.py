"""What the scheduler is told and what it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Decision", "EngineProfile", "Request"]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What Chimera's load estimate knows of an engine (§3.5: Π[m]), measured by ``calibrate``.

    ``decode_ms_per_token`` is the time of a decode-only step of a full batch: one token for each
    of ``max_batch_size`` sequences.
    """

    name: str
    model: str
    decode_ms_per_token: float
    max_batch_size: int


@dataclass(frozen=True, slots=True)
class Request:
    """One stage's call, with the predictions that its decision needs.

    Attributes:
        request_id: unique among live requests, chosen by the caller.
        program_id: the program that the stage belongs to.
        remaining_tokens: ŷ, shape (n_engines,): the program's predicted output tokens from this
            stage on, by each engine's model. For a program that has an engine only that engine's
            entry is used; where ``Scheduler.needs_lengths`` is false, zeros will do.
        confidence: q, shape (n_engines,): each engine's model's chance of success, in 0..1. None
            when the program already has an engine, the request is pinned, or
            ``Scheduler.needs_confidence`` is false.
        overrun_tokens: what more is expected of the program once it has outlived ŷ, shape
            (n_engines,); None: nothing is.
        pinned_to: the only engines that may take the request, replicas of one model; None: any may.
    """

    request_id: int
    program_id: str
    remaining_tokens: npt.NDArray[np.float64]
    confidence: npt.NDArray[np.float64] | None
    overrun_tokens: npt.NDArray[np.float64] | None = None
    pinned_to: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request was queued.

    Attributes:
        engine: index of the engine.
        priority: for vLLM's ``priority`` field, lower first; 0 for every request under ``fcfs``.
        reason: ``known_program``, or what the policy saw: ``in_turn``, ``shortest_queue``,
            ``fastest`` or ``upgrade``; ``pinned`` for every request that was.
        load_ms: L, shape (n_engines,): each engine's load in ms as the policy saw it when it
            decided.
    """

    engine: int
    priority: int
    reason: str
    load_ms: npt.NDArray[np.float64]

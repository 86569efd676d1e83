"""What is known of one request on its way, and the row of the decision log that it becomes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from chimera_train.history import History
from chimera_train.relay.api import Call
from chimera_train.relay.events import StreamObserver
from chimera_train.runtime.dispatcher import Slot
from chimera_train.runtime.predictions import Prediction
from chimera_train.runtime.programs import Program

__all__ = ["Trip"]


@dataclass(slots=True)
class Trip:
    """One request.

    Attributes:
        pinned_to: the only engines that may take it; None: any may.
        arrived: wall-clock time at which the request had been received.
        arrived_ms: the same on the gateway's clock.
        observer: what its engine's stream shows.
        prediction: the last one that was made for it.
        slot: the last one that it was given.
        overhead_ms: from arrival to the first decision: reading, predicting and deciding.
        fallbacks: how often its engine went away.
        error: why it did not complete.
    """

    call: Call
    program: Program
    pinned_to: Sequence[int] | None
    arrived: datetime
    arrived_ms: float
    observer: StreamObserver = field(default_factory=StreamObserver)
    prediction: Prediction | None = None
    slot: Slot | None = None
    overhead_ms: float | None = None
    fallbacks: int = 0
    error: str | None = None

    @property
    def completed(self) -> bool:
        """Whether its response is complete."""
        return self.slot is not None and self.slot.completed

    @property
    def ttft_ms(self) -> float | None:
        """Arrival to first token."""
        first_token_ms = self.observer.first_token_ms
        return None if first_token_ms is None else first_token_ms - self.arrived_ms

    @property
    def queue_ms(self) -> float | None:
        """Time spent waiting for the last slot."""
        return None if self.slot is None else self.slot.granted_ms - self.slot.admitted_ms

    def history(self) -> History:
        """That of its program, at its end."""
        before, observer = self.program.history, self.observer
        if not self.completed:
            return before
        return before.after(self.call.stage, observer.prompt_tokens or 0, observer.output_tokens)

    def row(self, now_ms: float, engines: Sequence[str], models: Sequence[str]) -> dict[str, Any]:
        """The request as a row of the decision log, at its end."""
        row: dict[str, Any] = {
            "time": self.arrived,
            "program_id": self.program.program_id,
            "workflow": self.call.workflow or self.program.workflow,
            "stage": self.call.stage,
            "prompt_tokens": self.observer.prompt_tokens,
            "realised_tokens": self.observer.output_tokens,
            "ttft_ms": self.ttft_ms,
            "e2e_ms": now_ms - self.arrived_ms,
            "queue_ms": self.queue_ms,
            "overhead_ms": self.overhead_ms,
            "fallbacks": self.fallbacks,
            "error": self.error,
        }
        if self.slot is not None and self.prediction is not None:
            decision = self.slot.decision
            tokens = self.prediction.remaining_tokens
            interval = self.prediction.interval_tokens
            low, high = (None, None) if interval is None else interval[decision.engine].tolist()
            row |= {
                "request_id": self.slot.request_id,
                "engine": engines[decision.engine],
                "model": models[decision.engine],
                "reason": decision.reason,
                "priority": decision.priority,
                "q": _by_engine(engines, self.prediction.confidence),
                "load_ms": _by_engine(engines, decision.load_ms),
                "predicted_tokens": None if tokens is None else float(tokens[decision.engine]),
                "predicted_low_tokens": low,
                "predicted_high_tokens": high,
            }
        return row


def _by_engine(
    engines: Sequence[str], values: npt.NDArray[np.float64] | None
) -> list[tuple[str, float]] | None:
    return None if values is None else list(zip(engines, values.tolist(), strict=True))

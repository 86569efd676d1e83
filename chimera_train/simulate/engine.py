"""A simulated engine: the arrays of one vLLM instance, and which requests are in them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_step
from chimera_train.predict.engine_state import EngineState, engine_limits, max_request_tokens
from chimera_train.predict.step_time import StepTimeModel

__all__ = ["Finished", "SimulatedEngine", "servable"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that the engine completed; times in ms.

    ``fresh_tokens`` are the output tokens that ``SimulatedEngine.fresh_tokens`` has not told yet.
    """

    request_id: int
    start_ms: float
    first_token_ms: float
    preemptions: int
    fresh_tokens: int


def servable(
    info: EngineInfo, prompt_tokens: npt.NDArray[np.int64], output_tokens: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Whether the engine, otherwise empty, can complete each request, shape (n,)."""
    return prompt_tokens + output_tokens <= max_request_tokens(info)


class SimulatedEngine:
    """One engine, of which ``engine_step`` has the rules.

    A step that has begun is ended by the caller, since only the caller knows when: engines that
    share a device change each other's pace.

    Args:
        model: step times, and the engine's limits.
        capacity: requests that can be in the engine at once, running and waiting.
    """

    def __init__(self, model: StepTimeModel, capacity: int) -> None:
        info = model.engine
        self._by_priority = info.scheduling_policy == "priority"
        self._compiled = model.compiled()
        self._limits = engine_limits(info)
        state = EngineState.empty(info, capacity)
        self._requests, self._queues, self._counts = state.requests, state.queues, state.counts
        self._times = np.full((2, capacity), np.nan)
        self._finished = np.zeros(capacity, dtype=np.int64)
        self._request_id = np.zeros(capacity, dtype=np.int64)
        self._told_tokens = np.zeros(capacity, dtype=np.int64)
        self._free = list(range(capacity - 1, -1, -1))
        self._submitted = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is in the engine."""
        return bool(self._counts[engine_step.N_RUNNING] + self._counts[engine_step.N_WAITING])

    @property
    def steps(self) -> int:
        """Steps ended so far."""
        return int(self._counts[engine_step.STEPS])

    @property
    def extrapolated_steps(self) -> int:
        """Steps begun so far that lie outside what the step-time model was fitted on."""
        return int(self._counts[engine_step.EXTRAPOLATED])

    def submit(
        self, request_id: int, prompt_tokens: int, output_tokens: int, priority: int
    ) -> None:
        """A request arrives; it may join the next step that begins."""
        slot = self._free.pop()
        request = self._requests[:, slot]
        request[:] = 0
        request[engine_step.PRIORITY] = priority if self._by_priority else 0
        request[engine_step.ARRIVAL] = self._submitted
        request[engine_step.PROMPT] = prompt_tokens
        request[engine_step.OUTPUT] = output_tokens
        self._times[:, slot] = np.nan
        self._request_id[slot] = request_id
        self._told_tokens[slot] = 0
        engine_step.enqueue(self._requests, self._queues, self._counts, slot)
        self._submitted += 1

    def advance(self, now_ms: float, horizon_ms: float, slowdown: float) -> tuple[float, float]:
        """Run steps while there is work, as ``engine_step.advance``: start and ms of the last."""
        result: tuple[float, float] = engine_step.advance(
            self._limits,
            self._compiled,
            self._requests,
            self._times,
            self._queues,
            self._counts,
            self._finished,
            now_ms,
            horizon_ms,
            slowdown,
        )
        return result

    def end_step(self, now_ms: float) -> list[Finished]:
        """End the step that has begun; the requests that it completed leave."""
        n = engine_step.end_step(
            self._requests, self._times, self._queues, self._counts, self._finished, now_ms
        )
        return [self._leave(slot) for slot in self._finished[:n].tolist()]

    def fresh_tokens(self) -> list[tuple[int, int]]:
        """(request id, output tokens since this was last called), where there were any."""
        running, waiting = self._queues
        slots = np.concatenate(
            [
                running[: self._counts[engine_step.N_RUNNING]],
                waiting[: self._counts[engine_step.N_WAITING]],
            ]
        )
        fresh = self._requests[engine_step.GENERATED, slots] - self._told_tokens[slots]
        slots, fresh = slots[fresh > 0], fresh[fresh > 0]
        self._told_tokens[slots] += fresh
        return list(zip(self._request_id[slots].tolist(), fresh.tolist(), strict=True))

    def _leave(self, slot: int) -> Finished:
        self._free.append(slot)
        return Finished(
            int(self._request_id[slot]),
            float(self._times[engine_step.START, slot]),
            float(self._times[engine_step.FIRST_TOKEN, slot]),
            int(self._requests[engine_step.PREEMPTIONS, slot]),
            int(self._requests[engine_step.OUTPUT, slot] - self._told_tokens[slot]),
        )

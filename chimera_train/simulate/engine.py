"""A simulated engine: the arrays of one vLLM instance, and which requests are in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict import engine_run, engine_step
from chimera_train.predict.engine_state import empty_engine, max_request_tokens
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
        prompt_keys: keys that a prompt has at most.
    """

    def __init__(self, model: StepTimeModel, capacity: int, *, prompt_keys: int = 0) -> None:
        info = model.engine
        self.arrays = empty_engine(
            info, capacity, caching=info.enable_prefix_caching, prompt_keys=prompt_keys
        )
        self._by_priority = info.scheduling_policy == "priority"
        self._compiled = model.compiled()
        self._request_id = np.zeros(capacity, dtype=np.int64)
        self._told_tokens = np.zeros(capacity, dtype=np.int64)
        self._free = list(range(capacity - 1, -1, -1))
        self._submitted = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is in the engine, or a step planned."""
        return bool(engine_step.has_work(self.arrays))

    @property
    def steps(self) -> int:
        """Steps ended so far."""
        return int(self.arrays.counts[rows.STEPS])

    @property
    def extrapolated_steps(self) -> int:
        """Steps begun so far that lie outside what the step-time model was fitted on."""
        return int(self.arrays.counts[rows.EXTRAPOLATED])

    def submit(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens: int,
        priority: int,
        *,
        prompt_keys: Sequence[int] = (),
        stops: bool = False,
    ) -> None:
        """A request arrives; it may join the next step that is planned.

        Args:
            request_id: the caller's, unique in the engine.
            prompt_tokens: at least 1.
            output_tokens: at least 1.
            priority: vLLM's, lower first; nothing to an engine that serves in order of arrival.
            prompt_keys: numbers of the text up to the end of each whole block of the prompt, 0 or
                more. Requests share blocks of equal number.
            stops: whether the model ends the output, and not max_tokens.
        """
        slot = self._free.pop()
        request = self.arrays.requests[:, slot]
        request[:] = 0
        request[rows.PRIORITY] = priority if self._by_priority else 0
        request[rows.ARRIVAL] = self._submitted
        request[rows.PROMPT] = prompt_tokens
        request[rows.OUTPUT] = output_tokens
        request[rows.STOPS] = stops
        if self.arrays.limits[rows.CACHING]:
            request[rows.PROMPT_KEYS] = len(prompt_keys)
            self.arrays.prompt_keys[slot, : len(prompt_keys)] = prompt_keys
        self.arrays.times[:, slot] = np.nan
        self._request_id[slot] = request_id
        self._told_tokens[slot] = 0
        engine_step.enqueue(self.arrays.requests, self.arrays.queues, self.arrays.counts, slot)
        self._submitted += 1

    def advance(self, now_ms: float, horizon_ms: float, slowdown: float) -> tuple[float, float]:
        """Run steps while there is work, as ``engine_run.advance``: start and ms of the last."""
        result: tuple[float, float] = engine_run.advance(
            self.arrays, self._compiled, now_ms, horizon_ms, slowdown
        )
        return result

    def end_step(self, now_ms: float) -> list[Finished]:
        """End the step that has begun; the requests that it completed leave."""
        n = engine_step.end_step(self.arrays, now_ms)
        return [self._leave(slot) for slot in self.arrays.finished[:n].tolist()]

    def fresh_tokens(self) -> list[tuple[int, int]]:
        """(request id, output tokens since this was last called), where there were any."""
        running, waiting = self.arrays.queues
        counts = self.arrays.counts
        slots = np.concatenate(
            [running[: counts[rows.N_RUNNING]], waiting[: counts[rows.N_WAITING]]]
        )
        fresh = self.arrays.requests[rows.GENERATED, slots] - self._told_tokens[slots]
        fresh[: counts[rows.N_COHORT]] += counts[rows.COHORT_STEPS]
        slots, fresh = slots[fresh > 0], fresh[fresh > 0]
        self._told_tokens[slots] += fresh
        return list(zip(self._request_id[slots].tolist(), fresh.tolist(), strict=True))

    def _leave(self, slot: int) -> Finished:
        self._free.append(slot)
        return Finished(
            int(self._request_id[slot]),
            float(self.arrays.times[rows.START, slot]),
            float(self.arrays.times[rows.FIRST_TOKEN, slot]),
            int(self.arrays.requests[rows.PREEMPTIONS, slot]),
            int(self.arrays.requests[rows.OUTPUT, slot] - self._told_tokens[slot]),
        )

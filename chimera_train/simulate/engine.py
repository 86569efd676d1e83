"""A simulated engine: the arrays of one vLLM instance, and which requests are in them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.simulate import step

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
    total = prompt_tokens + output_tokens
    limit = info.max_model_len
    if not info.enable_chunked_prefill:
        limit = min(limit, info.max_num_batched_tokens)
    # The last output token is never computed on, so it takes no memory.
    return (total <= limit) & (total - 1 <= _usable_blocks(info) * info.block_size)


def _usable_blocks(info: EngineInfo) -> int:
    return info.num_kv_blocks - 1  # vLLM keeps one block as its null block


class SimulatedEngine:
    """One engine, of which ``step`` has the rules.

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
        self._limits = np.zeros(4, dtype=np.int64)
        self._limits[step.MAX_SEQS] = info.max_num_seqs
        self._limits[step.MAX_TOKENS] = info.max_num_batched_tokens
        self._limits[step.BLOCK_SIZE] = info.block_size
        self._limits[step.CHUNKED] = info.enable_chunked_prefill
        self._requests = np.zeros((9, capacity), dtype=np.int64)
        self._times = np.full((2, capacity), np.nan)
        self._queues = np.zeros((2, capacity), dtype=np.int64)
        self._counts = np.zeros(4, dtype=np.int64)
        self._counts[step.FREE_BLOCKS] = _usable_blocks(info)
        self._finished = np.zeros(capacity, dtype=np.int64)
        self._request_id = np.zeros(capacity, dtype=np.int64)
        self._told_tokens = np.zeros(capacity, dtype=np.int64)
        self._free = list(range(capacity - 1, -1, -1))
        self._submitted = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is in the engine."""
        return bool(self._counts[step.N_RUNNING] + self._counts[step.N_WAITING])

    @property
    def steps(self) -> int:
        """Steps ended so far."""
        return int(self._counts[step.STEPS])

    def submit(
        self, request_id: int, prompt_tokens: int, output_tokens: int, priority: int
    ) -> None:
        """A request arrives; it may join the next step that begins."""
        slot = self._free.pop()
        request = self._requests[:, slot]
        request[:] = 0
        request[step.PRIORITY] = priority if self._by_priority else 0
        request[step.ARRIVAL] = self._submitted
        request[step.PROMPT] = prompt_tokens
        request[step.OUTPUT] = output_tokens
        self._times[:, slot] = np.nan
        self._request_id[slot] = request_id
        self._told_tokens[slot] = 0
        self._queues[step.WAITING, self._counts[step.N_WAITING]] = slot
        self._counts[step.N_WAITING] += 1
        self._submitted += 1

    def advance(self, now_ms: float, horizon_ms: float, slowdown: float) -> tuple[float, float]:
        """Run steps while there is work (see ``step.advance``): the start and ms of the last."""
        result: tuple[float, float] = step.advance(
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
        n = step.end_step(
            self._requests, self._times, self._queues, self._counts, self._finished, now_ms
        )
        return [self._leave(slot) for slot in self._finished[:n].tolist()]

    def fresh_tokens(self) -> list[tuple[int, int]]:
        """(request id, output tokens since this was last called), where there were any."""
        running, waiting = self._queues
        slots = np.concatenate(
            [running[: self._counts[step.N_RUNNING]], waiting[: self._counts[step.N_WAITING]]]
        )
        fresh = self._requests[step.GENERATED, slots] - self._told_tokens[slots]
        slots, fresh = slots[fresh > 0], fresh[fresh > 0]
        self._told_tokens[slots] += fresh
        return list(zip(self._request_id[slots].tolist(), fresh.tolist(), strict=True))

    def _leave(self, slot: int) -> Finished:
        self._free.append(slot)
        return Finished(
            int(self._request_id[slot]),
            float(self._times[step.START, slot]),
            float(self._times[step.FIRST_TOKEN, slot]),
            int(self._requests[step.PREEMPTIONS, slot]),
            int(self._requests[step.OUTPUT, slot] - self._told_tokens[slot]),
        )

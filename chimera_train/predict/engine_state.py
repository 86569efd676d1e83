"""What an engine holds at one moment, as the arrays that ``engine_step`` works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_step

__all__ = ["EngineState", "Resident", "engine_limits", "max_request_tokens"]


def engine_limits(info: EngineInfo) -> npt.NDArray[np.int64]:
    """The engine's limits in the order of ``engine_step``, shape (4,)."""
    limits = np.zeros(4, dtype=np.int64)
    limits[engine_step.MAX_SEQS] = info.max_num_seqs
    limits[engine_step.MAX_TOKENS] = info.max_num_batched_tokens
    limits[engine_step.BLOCK_SIZE] = info.block_size
    limits[engine_step.CHUNKED] = info.enable_chunked_prefill
    return limits


def max_request_tokens(info: EngineInfo) -> int:
    """Prompt and output tokens of the longest request that the engine, otherwise empty, completes.

    vLLM ends a request at ``max_model_len`` tokens. Without chunked prefill a preempted request
    must fit one step to come back.
    """
    # The last output token is never computed on, so it takes no memory.
    longest = min(info.max_model_len, _usable_blocks(info) * info.block_size + 1)
    if not info.enable_chunked_prefill:
        longest = min(longest, info.max_num_batched_tokens)
    return longest


def _usable_blocks(info: EngineInfo) -> int:
    return info.num_kv_blocks - 1  # vLLM keeps one block as its null block


@dataclass(frozen=True, slots=True)
class Resident:
    """A request in an engine, as the last step that ended left it.

    Attributes:
        arrival: its place in the order of arrival; different for every request of an engine.
        prompt_tokens: of the whole prompt.
        output_tokens: in all, those generated already included; usually a prediction.
        priority: vLLM's, lower first.
        cached_tokens: a waiting request's tokens that the prefix cache holds.
        computed_tokens: a running request's prompt and output tokens computed on so far, prefix
            hits included; one less than prompt and generated ones together while it decodes.
        generated_tokens: output tokens that it has yielded; a waiting request has some if it was
            preempted.
        chunk_tokens: tokens that the step under way computes of a running request; 0: no step is
            under way, or what it computes is not known.
    """

    arrival: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    chunk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineState:
    """The requests in an engine, in the layout of ``engine_step``; all arrays int64.

    Attributes:
        requests: shape (10, capacity).
        queues: shape (2, capacity).
        counts: shape (5,).
    """

    requests: npt.NDArray[np.int64]
    queues: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, info: EngineInfo, capacity: int) -> EngineState:
        """An engine without requests that has room for ``capacity`` of them."""
        counts = np.zeros(engine_step.COUNT_ENTRIES, dtype=np.int64)
        counts[engine_step.FREE_BLOCKS] = _usable_blocks(info)
        requests = np.zeros((engine_step.REQUEST_ROWS, capacity), dtype=np.int64)
        return cls(requests, np.zeros((2, capacity), dtype=np.int64), counts)

    @classmethod
    def build(
        cls, info: EngineInfo, running: Sequence[Resident], waiting: Sequence[Resident]
    ) -> EngineState:
        """An engine with these requests: the running in order of admission, the waiting in any.

        Running requests hold the blocks of their computed tokens and of their chunk, none shared.

        Raises:
            DataError: the running requests hold more blocks than the engine has, or one of them
                has computed all of its sequence, which leaves it nothing to run for.
        """
        state = cls.empty(info, len(running) + len(waiting))
        by_priority = info.scheduling_policy == "priority"
        for slot, resident in enumerate([*running, *waiting]):
            column = state.requests[:, slot]
            column[engine_step.PRIORITY] = resident.priority if by_priority else 0
            column[engine_step.ARRIVAL] = resident.arrival
            column[engine_step.PROMPT] = resident.prompt_tokens
            column[engine_step.OUTPUT] = resident.output_tokens
            column[engine_step.GENERATED] = resident.generated_tokens
            if slot >= len(running):
                column[engine_step.CACHED] = resident.cached_tokens
                engine_step.enqueue(state.requests, state.queues, state.counts, slot)
                continue
            held = resident.computed_tokens + resident.chunk_tokens
            if max(held, resident.computed_tokens + 1) > (
                resident.prompt_tokens + resident.generated_tokens
            ):
                raise DataError(
                    f"The running request that arrived as number {resident.arrival} has"
                    f" {resident.prompt_tokens + resident.generated_tokens} tokens, of which"
                    f" {resident.computed_tokens} are computed and {resident.chunk_tokens} under"
                    " way."
                )
            blocks = engine_step.blocks_of(held, info.block_size)
            column[engine_step.COMPUTED] = resident.computed_tokens
            column[engine_step.CHUNK] = resident.chunk_tokens
            column[engine_step.BLOCKS] = blocks
            state.queues[engine_step.RUNNING, slot] = slot
            state.counts[engine_step.FREE_BLOCKS] -= blocks
        state.counts[engine_step.N_RUNNING] = len(running)
        if state.counts[engine_step.FREE_BLOCKS] < 0:
            raise DataError(
                f"The running requests hold {-state.counts[engine_step.FREE_BLOCKS]} KV blocks"
                f" more than the engine's {_usable_blocks(info)}."
            )
        return state

"""What an engine holds at one moment, as the arrays that ``engine_step`` works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chimera_train.compiled import in_place
from chimera_train.errors import DataError
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.block_pool import blocks_of, free_all
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_step import enqueue

__all__ = ["Resident", "clear", "empty_engine", "engine_with", "max_request_tokens"]


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
        overrun_tokens: what more is expected once the request has yielded ``output_tokens``.
    """

    arrival: int
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    chunk_tokens: int = 0
    overrun_tokens: int = 0


def empty_engine(
    info: EngineInfo, capacity: int, *, caching: bool = False, prompt_keys: int = 0
) -> EngineArrays:
    """An engine without requests.

    Args:
        info: its limits.
        capacity: requests that can be in it at once, running and waiting.
        caching: whether to keep account of which KV block holds what. Otherwise only their number
            counts, which is all there is to it where the engine has no prefix cache.
        prompt_keys: how many ``prompt_keys`` a request has at most.
    """
    limits = np.zeros(6, dtype=np.int64)
    limits[rows.MAX_SEQS] = info.max_num_seqs
    limits[rows.MAX_TOKENS] = info.max_num_batched_tokens
    limits[rows.BLOCK_SIZE] = info.block_size
    limits[rows.CHUNKED] = info.enable_chunked_prefill
    limits[rows.ASYNC] = info.async_scheduling
    limits[rows.CACHING] = caching
    n_blocks = _usable_blocks(info)
    counts = np.zeros(rows.COUNT_ENTRIES, dtype=np.int64)
    counts[rows.FREE_BLOCKS] = n_blocks
    engine = EngineArrays(
        limits=limits,
        requests=np.zeros((rows.REQUEST_ROWS, capacity), dtype=np.int64),
        times=np.full((2, capacity), np.nan),
        queues=np.zeros((2, capacity), dtype=np.int64),
        counts=counts,
        step=np.zeros(5),
        ahead=np.zeros(5),
        finished=np.zeros(capacity, dtype=np.int64),
        room=np.zeros(info.block_size, dtype=np.int64),
        blocks=np.zeros((4, n_blocks + 1 if caching else 0), dtype=np.int64),
        table=np.zeros(
            (capacity, blocks_of(info.max_model_len, info.block_size)) if caching else (0, 0),
            dtype=np.int64,
        ),
        prompt_keys=np.zeros((capacity if caching else 0, prompt_keys), dtype=np.int64),
        # At most half full, so that a search soon meets a free place.
        cache=np.zeros((2, 1 << (2 * n_blocks).bit_length() if caching else 0), dtype=np.int64),
    )
    if caching:
        free_all(engine, n_blocks)
    return engine


@in_place
def clear(engine: EngineArrays, usable_blocks: int) -> None:
    """Take all requests and steps out of an engine, and what its KV blocks hold.

    It goes on counting steps. ``usable_blocks`` are those that it has.
    """
    counts = engine.counts
    counts[rows.N_RUNNING] = counts[rows.N_COHORT] = 0
    counts[rows.N_WAITING] = counts[rows.N_STALE] = 0
    counts[rows.FREE_BLOCKS] = usable_blocks
    engine.step[:] = 0.0
    engine.ahead[:] = 0.0
    if engine.limits[rows.CACHING]:
        free_all(engine, usable_blocks)


def engine_with(
    info: EngineInfo, running: Sequence[Resident], waiting: Sequence[Resident]
) -> EngineArrays:
    """An engine with these requests: the running in order of admission, the waiting in any.

    Running requests hold the blocks of their computed tokens and of their chunk, none shared.

    Raises:
        DataError: the running requests hold more blocks than the engine has, or one of them has
            computed all of its sequence, which leaves it nothing to run for.
    """
    engine = empty_engine(info, len(running) + len(waiting))
    by_priority = info.scheduling_policy == "priority"
    for slot, resident in enumerate([*running, *waiting]):
        column = engine.requests[:, slot]
        column[rows.PRIORITY] = resident.priority if by_priority else 0
        column[rows.ARRIVAL] = resident.arrival
        column[rows.PROMPT] = resident.prompt_tokens
        column[rows.OUTPUT] = column[rows.EXPECTED] = resident.output_tokens
        column[rows.OVERRUN] = resident.overrun_tokens
        column[rows.GENERATED] = resident.generated_tokens
        if slot >= len(running):
            column[rows.CACHED] = resident.cached_tokens
            enqueue(engine.requests, engine.queues, engine.counts, slot)
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
        blocks = blocks_of(held, info.block_size)
        column[rows.COMPUTED] = resident.computed_tokens
        column[rows.CHUNK] = resident.chunk_tokens
        column[rows.BLOCKS] = blocks
        engine.queues[rows.RUNNING, slot] = slot
        engine.counts[rows.FREE_BLOCKS] -= blocks
    engine.counts[rows.N_RUNNING] = len(running)
    if engine.counts[rows.FREE_BLOCKS] < 0:
        raise DataError(
            f"The running requests hold {-engine.counts[rows.FREE_BLOCKS]} KV blocks more than the"
            f" engine's {_usable_blocks(info)}."
        )
    return engine

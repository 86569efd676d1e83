"""What steps an engine takes for a batch of equal requests that start together.

The engine's own rules say it (``predict.engine_step``): a batch whose sequences do not fit the KV
cache together is served in turns and with preemptions, which no sum over one long batch explains.
Which steps are taken does not depend on how long each takes, so the sums are exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from numba import njit

from chimera_train.latency.fit import fit, predict
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_step

__all__ = ["Batch", "Limits", "batch_steps", "fit_kv_tokens"]

_UNLIMITED = 1 << 40
# Sizes of a KV cache that are tried, so many for each doubling, and by how much one must lower the
# error to be believed.
_SIZES_PER_OCTAVE = 8
_WORTHWHILE = 0.1

_SUMS = (
    "n_steps",
    "n_prefill_steps",
    "n_decode_steps",
    "n_batched_steps",
    "prefill_tokens",
    "decode_tokens",
    "decode_ctx_tokens",
    "prefill_attn",
)


@dataclass(frozen=True, slots=True)
class Batch:
    """``size`` requests of ``prompt_tokens`` and ``output_tokens`` each."""

    size: int
    prompt_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all sequences when they are complete."""
        return self.size * (self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a step of the engine; by default nothing does."""

    kv_tokens: int = _UNLIMITED
    block_size: int = 16
    max_num_seqs: int = _UNLIMITED
    max_num_batched_tokens: int = _UNLIMITED
    enable_chunked_prefill: bool = True

    @classmethod
    def of(cls, info: EngineInfo) -> Limits:
        """Those of a known engine, of whose KV blocks vLLM keeps one as a placeholder."""
        return cls(
            (info.num_kv_blocks - 1) * info.block_size,
            info.block_size,
            info.max_num_seqs,
            info.max_num_batched_tokens,
            info.enable_chunked_prefill,
        )


@functools.lru_cache(maxsize=65536)
def batch_steps(batch: Batch, limits: Limits) -> dict[str, float]:
    """Counts of the steps table, summed over the steps of ``batch``.

    The limits must allow a single request of it.
    """
    blocks = limits.kv_tokens // limits.block_size
    array = np.empty(4, dtype=np.int64)
    array[engine_step.MAX_SEQS] = min(limits.max_num_seqs, batch.size)
    array[engine_step.MAX_TOKENS] = limits.max_num_batched_tokens
    array[engine_step.BLOCK_SIZE] = limits.block_size
    array[engine_step.CHUNKED] = limits.enable_chunked_prefill
    sums = _run(array, blocks, batch.size, batch.prompt_tokens, batch.output_tokens)
    return dict(zip(_SUMS, sums.tolist(), strict=True))


def fit_kv_tokens(batches: Sequence[Batch], total_ms: Sequence[float]) -> int | None:
    """The size of the KV cache that explains the times of whole runs best.

    Returns:
        Tokens; None if the times are as well explained by a cache that holds every batch.
    """
    measured = np.asarray(total_ms, dtype=np.float64)

    def error(kv_tokens: int) -> float:
        rows = [batch_steps(batch, Limits(kv_tokens)) for batch in batches]
        frame = pd.DataFrame(rows).assign(step_ms=measured)
        return float(np.abs(predict(fit("memory", frame), frame) / measured - 1).mean())

    largest = max(batch.tokens for batch in batches)
    smallest = max(batch.tokens // batch.size for batch in batches) + Limits().block_size
    first, last = (math.ceil(_SIZES_PER_OCTAVE * math.log2(size)) for size in (smallest, largest))
    # The same sizes for every table, so that the steps of a batch are computed once.
    tried = [round(2 ** (i / _SIZES_PER_OCTAVE)) for i in range(first, last)]
    if not tried:
        return None
    errors = {kv_tokens: error(kv_tokens) for kv_tokens in tried}
    best = min(tried, key=errors.__getitem__)
    return best if errors[best] < (1 - _WORTHWHILE) * error(_UNLIMITED) else None


@njit(cache=True)
def _run(limits: Any, blocks: int, size: int, prompt: int, output: int) -> npt.NDArray[np.float64]:
    requests = np.zeros((engine_step.REQUEST_ROWS, size), dtype=np.int64)
    queues = np.zeros((2, size), dtype=np.int64)
    counts = np.zeros(engine_step.COUNT_ENTRIES, dtype=np.int64)
    times = np.full((2, size), np.nan)
    finished = np.zeros(size, dtype=np.int64)
    counts[engine_step.FREE_BLOCKS] = blocks
    for slot in range(size):
        requests[engine_step.ARRIVAL, slot] = slot
        requests[engine_step.PROMPT, slot] = prompt
        requests[engine_step.OUTPUT, slot] = output
        engine_step.enqueue(requests, queues, counts, slot)
    sums = np.zeros(8)  # in the order of _SUMS
    while counts[engine_step.N_RUNNING] + counts[engine_step.N_WAITING] > 0:
        prefill, decode, context, attention = engine_step.schedule_step(
            limits, requests, times, queues, counts, 0.0
        )
        if prefill + decode == 0:  # every running request was preempted, which takes no time
            continue
        sums[0] += 1
        sums[1] += prefill > 0
        sums[2] += decode > 0
        sums[3] += prefill + decode > 1
        sums[4] += prefill
        sums[5] += decode
        sums[6] += context
        sums[7] += attention
        engine_step.end_step(requests, times, queues, counts, finished, 0.0)
    return sums

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

import numpy as np
import numpy.typing as npt
import pandas as pd
from numba import njit

from chimera_train.latency.fit import fit, predict
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_state import empty_engine
from chimera_train.predict.engine_step import begin_step, end_step, has_work

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
    info = EngineInfo(
        model="",
        device="",
        vllm_version="",
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=batch.prompt_tokens + batch.output_tokens,
        block_size=limits.block_size,
        num_kv_blocks=limits.kv_tokens // limits.block_size + 1,
        enable_prefix_caching=False,
        enable_chunked_prefill=limits.enable_chunked_prefill,
        scheduling_policy="fcfs",
        async_scheduling=False,
        tensor_parallel_size=1,
    )
    engine = empty_engine(info, batch.size)
    engine.requests[rows.ARRIVAL] = np.arange(batch.size)
    engine.requests[rows.PROMPT] = batch.prompt_tokens
    engine.requests[rows.OUTPUT] = batch.output_tokens
    engine.queues[rows.WAITING] = np.arange(batch.size)
    engine.counts[rows.N_WAITING] = batch.size
    return dict(zip(_SUMS, _run(engine).tolist(), strict=True))


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
def _run(engine: EngineArrays) -> npt.NDArray[np.float64]:
    sums = np.zeros(8)  # in the order of _SUMS
    while has_work(engine):
        if not begin_step(engine, 0.0):
            continue
        prefill, decode = engine.step[0], engine.step[1]
        sums[0] += 1
        sums[1] += prefill > 0
        sums[2] += decode > 0
        sums[3] += prefill + decode > 1
        for feature in range(4):
            sums[4 + feature] += engine.step[feature]
        end_step(engine, 0.0)
    return sums

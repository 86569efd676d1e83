"""The arrays that hold one engine's state, and what their rows mean.

``engine_step`` has the rules that work on them, ``block_pool`` those for KV blocks.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "AHEAD",
    "ARRIVAL",
    "ASYNC",
    "BLOCKS",
    "BLOCK_SIZE",
    "CACHED",
    "CACHING",
    "CHUNK",
    "CHUNKED",
    "COHORT_AHEAD",
    "COHORT_CHUNK",
    "COHORT_CONTEXT",
    "COHORT_END",
    "COHORT_STEPS",
    "COMPUTED",
    "COUNT_ENTRIES",
    "ENDS",
    "EXPECTED",
    "EXTRAPOLATED",
    "FIRST_TOKEN",
    "FREE_BLOCKS",
    "GENERATED",
    "KEYED",
    "MAX_SEQS",
    "MAX_TOKENS",
    "N_COHORT",
    "N_RUNNING",
    "N_STALE",
    "N_WAITING",
    "OUTPUT",
    "OVERRUN",
    "PREEMPTIONS",
    "PRIORITY",
    "PROMPT",
    "PROMPT_KEYS",
    "REQUEST_ROWS",
    "RUNNING",
    "STALE",
    "START",
    "STEPS",
    "STOPS",
    "WAITING",
    "EngineArrays",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Rows of ``requests``, which has one column a request (its *slot*).
# CACHED: tokens at the head of a waiting prompt that a cache holds whose blocks are not known.
# CHUNK: tokens that the step under way computes; AHEAD: those of the step planned behind it.
# STALE: whether a request that was preempted since still gets a token from the step under way.
# EXPECTED: what OUTPUT is predicted to be, for those who may not know it; OVERRUN: what more is
# expected of a request that has outlived that.
# STOPS: whether its last token is the model's doing, and not max_tokens.
# KEYED: blocks that are known to the prefix cache; PROMPT_KEYS: entries of ``prompt_keys``.
(
    PRIORITY,
    ARRIVAL,
    PROMPT,
    OUTPUT,
    EXPECTED,
    OVERRUN,
    STOPS,
    CACHED,
    COMPUTED,
    GENERATED,
    BLOCKS,
    CHUNK,
    AHEAD,
    STALE,
    PREEMPTIONS,
    KEYED,
    PROMPT_KEYS,
) = range(17)
REQUEST_ROWS = 17
# Rows of ``times``, ms: the start of a request's first step and its first token; NaN until then.
START, FIRST_TOKEN = range(2)
# Rows of ``queues``; the running are in order of admission, the waiting in that of urgency.
RUNNING, WAITING = range(2)
# Entries of ``counts``. N_STALE: waiting requests that are STALE. EXTRAPOLATED: steps outside what
# the step-time model was fitted on. N_COHORT: how many of the running, from the first on, are the
# cohort (``engine_cohort``), of whom the rows above say too little, and what is common to them:
# COHORT_STEPS: tokens by which COMPUTED and GENERATED are too low; COHORT_END: what those are when
# the first of them ends; COHORT_CONTEXT: Σ of what they have computed; COHORT_CHUNK, COHORT_AHEAD:
# each one's CHUNK and AHEAD.
(
    N_RUNNING,
    N_WAITING,
    N_STALE,
    FREE_BLOCKS,
    STEPS,
    EXTRAPOLATED,
    N_COHORT,
    COHORT_STEPS,
    COHORT_END,
    COHORT_CONTEXT,
    COHORT_CHUNK,
    COHORT_AHEAD,
) = range(12)
COUNT_ENTRIES = 12
# Entry of ``step`` and ``ahead`` behind the features: more than 0 if anybody gets its last token.
ENDS = 4
# Entries of ``limits``. CHUNKED: whether a prompt may be computed in several steps. ASYNC: whether
# a step is planned while its predecessor runs. CACHING: whether it is known which block holds what.
MAX_SEQS, MAX_TOKENS, BLOCK_SIZE, CHUNKED, ASYNC, CACHING = range(6)


class EngineArrays(NamedTuple):
    """One engine; every array int64 but for ``times``, ``step`` and ``ahead``, which are float64.

    Attributes:
        limits: shape (6,).
        requests: shape (17, capacity).
        times: shape (2, capacity), ms.
        queues: slots, shape (2, capacity).
        counts: shape (12,).
        step: features of the step under way, as the step-time model has them: prefill_tokens,
            decode_tokens, decode_ctx_tokens, prefill_attn; and ENDS. Shape (5,).
        ahead: those of the step planned behind it; zeros if none is.
        finished: slots that the last step finished are the first of these, shape (capacity,).
        room: how many of the cohort take a block at each COHORT_STEPS, by the remainder of that,
            shape (block_size,).
        blocks: KV blocks, shape (4, num_kv_blocks + 1); empty without CACHING, as are the next
            three. See ``block_pool``.
        table: the blocks of each slot's sequence, in order, shape (capacity, blocks of a sequence).
        prompt_keys: numbers of the text up to the end of each of a slot's first whole blocks, 0 or
            more, shape (capacity, as many as any request has).
        cache: the blocks by their keys, shape (2, a power of 2).
    """

    limits: IntArray
    requests: IntArray
    times: FloatArray
    queues: IntArray
    counts: IntArray
    step: FloatArray
    ahead: FloatArray
    finished: IntArray
    room: IntArray
    blocks: IntArray
    table: IntArray
    prompt_keys: IntArray
    cache: IntArray

"""One vLLM V1 engine: which tokens each step computes.

A step (``vllm/v1/core/sched/scheduler.py``, release 0.32) shares a budget of tokens: first among
the running requests in the order they were admitted, then among the waiting ones, most urgent
first. A prompt may be computed in chunks; the step in which its last token is computed yields the
first output token, and every further step one more. KV memory is handed out in blocks. A running
request that finds no free block preempts the least urgent one, possibly itself, which loses its
blocks and later computes prompt and output again; a step that preempted admits nobody. A waiting
request is admitted only while its whole sequence fits the free blocks, and never takes memory or a
place from a running one, however urgent it is.

Urgency is (priority, arrival), lower first. An engine under ``fcfs`` is the case where all
priorities are equal.

With asynchronous scheduling a step is planned when its predecessor begins, on the assumption that
every running request gets its token. So a request that arrives during a step joins the one after
the next, memory is free one step later, and a request that the model ends, rather than max_tokens,
is computed once more for nothing.

Tokens at the head of a sequence that the prefix cache holds are not computed when the request is
admitted: whole blocks of them, and never the last token, which has to be computed to yield an
output. Where it is known which block holds what (CACHING), ``block_pool`` finds them, also those of
a preempted request that nobody took meanwhile, and blocks in use are shared. Otherwise a prompt has
a hit of CACHED tokens; their blocks are taken from the free ones, as vLLM does with cached blocks
that no running request uses, and a preempted request gets none.
"""

import numpy as np
from numba import njit

from chimera_train.predict.block_pool import (
    hit_blocks,
    key_blocks,
    release_blocks,
    share_blocks,
    take_blocks,
)
from chimera_train.predict.engine_arrays import (
    AHEAD,
    ARRIVAL,
    ASYNC,
    BLOCK_SIZE,
    BLOCKS,
    CACHED,
    CACHING,
    CHUNK,
    CHUNKED,
    COMPUTED,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GENERATED,
    MAX_SEQS,
    MAX_TOKENS,
    N_RUNNING,
    N_STALE,
    N_WAITING,
    OUTPUT,
    PREEMPTIONS,
    PRIORITY,
    PROMPT,
    RUNNING,
    STALE,
    START,
    STEPS,
    STOPS,
    WAITING,
    EngineArrays,
    FloatArray,
    IntArray,
)

__all__ = [
    "admissible",
    "begin_step",
    "blocks_of",
    "end_step",
    "ends",
    "enqueue",
    "has_work",
    "plan_step",
    "uncomputed",
]


@njit(cache=True)
def has_work(engine: EngineArrays) -> bool:
    """Whether a request is in the engine, or a step planned."""
    counts = engine.counts
    return counts[N_RUNNING] + counts[N_WAITING] > 0 or _tokens(engine.ahead) > 0


@njit(cache=True)
def begin_step(engine: EngineArrays, features: FloatArray, now_ms: float) -> bool:
    """Begin the next step, and plan the one behind it if the engine schedules asynchronously.

    ``features`` becomes the step's, as the step-time model has them: prefill_tokens, decode_tokens,
    decode_ctx_tokens, prefill_attn.

    Returns:
        Whether there is anything in the step. There is not where every running request was
        preempted: such a step takes no time, and the next can begin.
    """
    planned = _tokens(engine.ahead) > 0
    if planned:
        features[:] = engine.ahead
        engine.ahead[:] = 0.0
    else:
        plan_step(engine, CHUNK, features)
    requests, times = engine.requests, engine.times
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        if planned:
            requests[CHUNK, slot] = requests[AHEAD, slot]
            requests[AHEAD, slot] = 0
        if requests[CHUNK, slot] > 0 and np.isnan(times[START, slot]):
            times[START, slot] = now_ms
    if engine.limits[ASYNC] and _tokens(features) > 0:
        plan_step(engine, AHEAD, engine.ahead)
    return _tokens(features) > 0


@njit(cache=True)
def plan_step(engine: EngineArrays, row: int, features: FloatArray) -> None:
    """Give the running requests their tokens in the next step, admit waiting ones, fill features.

    ``row`` is CHUNK if no step is under way, and AHEAD to plan behind the one that is.
    """
    budget, preempted = _schedule_running(engine, row)
    if not preempted:
        _admit_waiting(engine, row, budget)
    requests = engine.requests
    features[:] = 0.0
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        chunk = requests[row, slot]
        if chunk == 0:
            continue
        computed = _computed(requests, slot, row)
        tokens = _known_tokens(requests, slot, row)
        if tokens > requests[PROMPT, slot] and tokens - computed == 1:
            features[1] += 1
            features[2] += computed
        else:
            features[0] += chunk
            features[3] += chunk * computed + chunk * (chunk + 1) / 2


@njit(cache=True)
def end_step(engine: EngineArrays, finished: IntArray, now_ms: float) -> int:
    """Apply the step that ends now.

    Returns:
        The number of requests it finished; ``finished`` begins with their slots. They leave their
        blocks and their place.
    """
    requests, counts = engine.requests, engine.counts
    running = engine.queues[RUNNING]
    n_running = counts[N_RUNNING]
    kept, n_finished = 0, 0
    for position in range(n_running):
        slot = running[position]
        chunk = requests[CHUNK, slot]
        requests[COMPUTED, slot] += chunk
        requests[CHUNK, slot] = 0
        if chunk > 0 and uncomputed(requests, slot) == 0:
            _yield_token(engine, slot, now_ms)
            if engine.limits[CACHING]:
                key_blocks(engine, slot, requests[COMPUTED, slot])
        if requests[GENERATED, slot] == requests[OUTPUT, slot]:
            _release(engine, slot)
            requests[AHEAD, slot] = 0
            finished[n_finished] = slot
            n_finished += 1
        else:
            running[kept] = slot
            kept += 1
    counts[N_RUNNING] = kept
    counts[STEPS] += 1
    if counts[N_STALE] > 0:
        n_finished = _end_stale(engine, finished, n_finished, now_ms)
    return n_finished


@njit(cache=True)
def _tokens(features: FloatArray) -> float:
    return features[0] + features[1]


@njit(cache=True)
def _computed(requests: IntArray, slot: int, row: int) -> int:
    """Tokens of the sequence that are computed when the step of ``row`` begins."""
    computed: int = requests[COMPUTED, slot]
    return computed + requests[CHUNK, slot] if row == AHEAD else computed


@njit(cache=True)
def _known_tokens(requests: IntArray, slot: int, row: int) -> int:
    """Tokens of the sequence when the step of ``row`` begins: the prompt and the output so far."""
    tokens: int = requests[PROMPT, slot] + requests[GENERATED, slot]
    if row == AHEAD and requests[CHUNK, slot] > 0:
        tokens += requests[COMPUTED, slot] + requests[CHUNK, slot] == tokens
    return tokens


@njit(cache=True)
def _schedule_running(engine: EngineArrays, row: int) -> tuple[int, bool]:
    """Chunks of the running requests; the budget left, and whether any was preempted."""
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    running = engine.queues[RUNNING]
    budget = limits[MAX_TOKENS]
    preempted = False
    position = 0
    while position < counts[N_RUNNING] and budget > 0:
        slot = running[position]
        computed = _computed(requests, slot, row)
        known = _known_tokens(requests, slot, row)
        if row == AHEAD and not requests[STOPS, slot] and ends(requests, slot):
            position += 1
            continue
        chunk = min(known - computed, budget)
        tokens = computed + chunk
        missing = 0
        # Most steps stay within the blocks there are, and a product is cheaper than a division.
        if tokens > requests[BLOCKS, slot] * limits[BLOCK_SIZE]:
            missing = blocks_of(tokens, limits[BLOCK_SIZE]) - requests[BLOCKS, slot]
        while missing > counts[FREE_BLOCKS]:
            preempted = True
            victim = _least_urgent(requests, running[: counts[N_RUNNING]])
            budget += requests[row, running[victim]]
            _preempt(engine, row, victim)
            if victim == position:
                return budget, True
            if victim < position:
                position -= 1
        _take(engine, slot, missing)
        if limits[CACHING]:
            # Behind a step under way the text of the last token is not known yet.
            text = requests[PROMPT, slot] + requests[GENERATED, slot]
            key_blocks(engine, slot, min(tokens, text))
        requests[row, slot] = chunk
        budget -= chunk
        position += 1
    return budget, preempted


@njit(cache=True)
def _admit_waiting(engine: EngineArrays, row: int, budget: int) -> None:
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    running, waiting = engine.queues[RUNNING], engine.queues[WAITING]
    admitted = 0
    while admitted < counts[N_WAITING] and budget > 0 and counts[N_RUNNING] < limits[MAX_SEQS]:
        slot = waiting[admitted]
        if not admissible(engine, slot, budget):
            break
        hit = _hit_tokens(engine, slot)
        if limits[CACHING]:
            share_blocks(engine, slot, hit // limits[BLOCK_SIZE])
        else:
            _take(engine, slot, hit // limits[BLOCK_SIZE])
        requests[COMPUTED, slot] = hit
        chunk = min(uncomputed(requests, slot), budget)
        missing = blocks_of(hit + chunk, limits[BLOCK_SIZE]) - requests[BLOCKS, slot]
        _take(engine, slot, missing)
        if limits[CACHING]:
            key_blocks(engine, slot, hit + chunk)
        requests[row, slot] = chunk
        budget -= chunk
        running[counts[N_RUNNING]] = slot
        counts[N_RUNNING] += 1
        admitted += 1
    if admitted > 0:
        counts[N_WAITING] -= admitted
        for position in range(counts[N_WAITING]):
            waiting[position] = waiting[position + admitted]


@njit(cache=True)
def admissible(engine: EngineArrays, slot: int, budget: int) -> bool:
    """Whether a waiting request that has its turn, and a place, can join with ``budget`` tokens."""
    limits = engine.limits
    tokens = engine.requests[PROMPT, slot] + engine.requests[GENERATED, slot]
    if not limits[CHUNKED] and tokens > budget and tokens - _hit_tokens(engine, slot) > budget:
        return False
    needed = blocks_of(tokens, limits[BLOCK_SIZE])
    if needed > engine.counts[FREE_BLOCKS] and limits[CACHING]:
        # Blocks in use cost nothing; those in the list of free ones are taken out of it.
        hits, free = hit_blocks(engine, slot, tokens - 1)
        needed -= hits - free
    return needed <= engine.counts[FREE_BLOCKS]


@njit(cache=True)
def enqueue(requests: IntArray, queues: IntArray, counts: IntArray, slot: int) -> None:
    """Add a request that neither runs nor waits to the waiting ones, at its place by urgency."""
    waiting = queues[WAITING]
    position = counts[N_WAITING]
    while position > 0 and _more_urgent(requests, slot, waiting[position - 1]):
        waiting[position] = waiting[position - 1]
        position -= 1
    waiting[position] = slot
    counts[N_WAITING] += 1


@njit(cache=True)
def _preempt(engine: EngineArrays, row: int, position: int) -> None:
    requests, counts = engine.requests, engine.counts
    running = engine.queues[RUNNING]
    slot = running[position]
    if row == AHEAD and requests[CHUNK, slot] > 0:
        gets_token = requests[COMPUTED, slot] + requests[CHUNK, slot] == (
            requests[PROMPT, slot] + requests[GENERATED, slot]
        )
        requests[STALE, slot] = gets_token
        counts[N_STALE] += gets_token
    _release(engine, slot)
    requests[COMPUTED, slot] = 0
    requests[CACHED, slot] = 0
    requests[CHUNK, slot] = 0
    requests[AHEAD, slot] = 0
    requests[PREEMPTIONS, slot] += 1
    counts[N_RUNNING] -= 1
    running[position : counts[N_RUNNING]] = running[position + 1 : counts[N_RUNNING] + 1].copy()
    enqueue(requests, engine.queues, counts, slot)


@njit(cache=True)
def _end_stale(engine: EngineArrays, finished: IntArray, n_finished: int, now_ms: float) -> int:
    """Deliver the tokens of requests that were preempted during the step that ends."""
    requests, counts = engine.requests, engine.counts
    waiting = engine.queues[WAITING]
    kept = 0
    for position in range(counts[N_WAITING]):
        slot = waiting[position]
        if requests[STALE, slot]:
            requests[STALE, slot] = 0
            _yield_token(engine, slot, now_ms)
        if requests[GENERATED, slot] == requests[OUTPUT, slot]:
            finished[n_finished] = slot
            n_finished += 1
        else:
            waiting[kept] = slot
            kept += 1
    counts[N_WAITING] = kept
    counts[N_STALE] = 0
    return n_finished


@njit(cache=True)
def _yield_token(engine: EngineArrays, slot: int, now_ms: float) -> None:
    engine.requests[GENERATED, slot] += 1
    if engine.requests[GENERATED, slot] == 1:
        engine.times[FIRST_TOKEN, slot] = now_ms


@njit(cache=True)
def _take(engine: EngineArrays, slot: int, n: int) -> None:
    if engine.limits[CACHING]:
        take_blocks(engine, slot, n)
    else:
        engine.counts[FREE_BLOCKS] -= n
        engine.requests[BLOCKS, slot] += n


@njit(cache=True)
def _release(engine: EngineArrays, slot: int) -> None:
    if engine.limits[CACHING]:
        release_blocks(engine, slot)
    else:
        engine.counts[FREE_BLOCKS] += engine.requests[BLOCKS, slot]
        engine.requests[BLOCKS, slot] = 0


@njit(cache=True)
def ends(requests: IntArray, slot: int) -> bool:
    """Whether the step under way yields the request's last token."""
    completes = requests[CHUNK, slot] > 0 and requests[CHUNK, slot] == uncomputed(requests, slot)
    return completes and requests[GENERATED, slot] + 1 == requests[OUTPUT, slot]


@njit(cache=True)
def uncomputed(requests: IntArray, slot: int) -> int:
    """Tokens of the request's sequence that no ended step has computed; 1 while it decodes."""
    return requests[PROMPT, slot] + requests[GENERATED, slot] - requests[COMPUTED, slot]


@njit(cache=True)
def blocks_of(tokens: int, block_size: int) -> int:
    """KV blocks that hold so many tokens."""
    return (tokens + block_size - 1) // block_size


@njit(cache=True)
def _more_urgent(requests: IntArray, a: int, b: int) -> bool:
    if requests[PRIORITY, a] != requests[PRIORITY, b]:
        return requests[PRIORITY, a] < requests[PRIORITY, b]
    return requests[ARRIVAL, a] < requests[ARRIVAL, b]


@njit(cache=True)
def _hit_tokens(engine: EngineArrays, slot: int) -> int:
    """Tokens that a request need not compute if it is admitted now."""
    requests, size = engine.requests, engine.limits[BLOCK_SIZE]
    if engine.limits[CACHING]:
        hits, _ = hit_blocks(engine, slot, requests[PROMPT, slot] + requests[GENERATED, slot] - 1)
        return hits * size
    if requests[CACHED, slot] == 0:
        return 0
    return min(requests[CACHED, slot], requests[PROMPT, slot] - 1) // size * size


@njit(cache=True)
def _least_urgent(requests: IntArray, slots: IntArray) -> int:
    """Position in ``slots``, which is not empty."""
    worst = 0
    for position in range(1, slots.size):
        if _more_urgent(requests, slots[worst], slots[position]):
            worst = position
    return worst

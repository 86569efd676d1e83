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

Requests that decode side by side are stepped as one (``engine_cohort``): of them there is nothing
here but where they begin and end.
"""

import numpy as np

from chimera_train.compiled import in_place
from chimera_train.predict.block_pool import (
    blocks_of,
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
    COHORT_AHEAD,
    COHORT_CHUNK,
    COMPUTED,
    ENDS,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GENERATED,
    KEYED,
    MAX_SEQS,
    MAX_TOKENS,
    N_COHORT,
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
from chimera_train.predict.engine_cohort import (
    dissolve_cohort,
    end_cohort,
    join_cohort,
    plan_cohort,
)

__all__ = [
    "admissible",
    "begin_step",
    "end_step",
    "ends",
    "enqueue",
    "has_work",
    "plan_step",
    "preempt",
]


@in_place
def has_work(engine: EngineArrays) -> bool:
    """Whether a request is in the engine, or a step planned."""
    counts = engine.counts
    return counts[N_RUNNING] + counts[N_WAITING] > 0 or _tokens(engine.ahead) > 0


@in_place
def begin_step(engine: EngineArrays, now_ms: float) -> bool:
    """Begin the next step, and plan the one behind it if the engine schedules asynchronously.

    Returns:
        Whether there is anything in the step. There is not where every running request was
        preempted: such a step takes no time, and the next can begin.
    """
    planned = _tokens(engine.ahead) > 0
    if planned:
        for feature in range(engine.step.size):
            engine.step[feature] = engine.ahead[feature]
            engine.ahead[feature] = 0.0
        requests, times, counts = engine.requests, engine.times, engine.counts
        counts[COHORT_CHUNK] = counts[COHORT_AHEAD]
        counts[COHORT_AHEAD] = 0
        for slot in engine.queues[RUNNING, counts[N_COHORT] : counts[N_RUNNING]]:
            requests[CHUNK, slot] = requests[AHEAD, slot]
            requests[AHEAD, slot] = 0
            if requests[CHUNK, slot] > 0 and np.isnan(times[START, slot]):
                times[START, slot] = now_ms
    else:
        plan_step(engine, CHUNK, now_ms)
    if engine.limits[ASYNC] and _tokens(engine.step) > 0:
        plan_step(engine, AHEAD, np.nan)
    return _tokens(engine.step) > 0


@in_place
def plan_step(engine: EngineArrays, row: int, start_ms: float) -> None:
    """Give the running requests their tokens in the next step, admit waiting ones.

    ``row`` is CHUNK to plan what becomes the step under way, which starts at ``start_ms``, and
    AHEAD to plan behind it, which starts nobody knows when (NaN); ``step`` or ``ahead`` become its
    features.
    """
    plan_cohort(engine, row)
    budget, preempted = _schedule_running(engine, row)
    if not preempted:
        _admit_waiting(engine, row, budget, start_ms)
    _add_features(engine, row)


@in_place
def end_step(engine: EngineArrays, now_ms: float) -> int:
    """Apply the step that ends now.

    Returns:
        The number of requests it finished; ``finished`` begins with their slots. They leave their
        blocks and their place. Nothing is written there if there are none.
    """
    requests, times, counts = engine.requests, engine.times, engine.counts
    running = engine.queues[RUNNING]
    first = counts[N_COHORT]
    n_finished = end_cohort(engine)
    kept = counts[N_COHORT]
    for position in range(first, counts[N_RUNNING]):
        slot = running[position]
        chunk = requests[CHUNK, slot]
        requests[COMPUTED, slot] += chunk
        requests[CHUNK, slot] = 0
        computed = requests[COMPUTED, slot]
        if chunk > 0 and computed == requests[PROMPT, slot] + requests[GENERATED, slot]:
            requests[GENERATED, slot] += 1
            if requests[GENERATED, slot] == 1:
                times[FIRST_TOKEN, slot] = now_ms
            if (
                engine.limits[CACHING]
                and computed >= (requests[KEYED, slot] + 1) * engine.limits[BLOCK_SIZE]
            ):
                key_blocks(engine, slot, computed)
        if requests[GENERATED, slot] == requests[OUTPUT, slot]:
            release_blocks(engine, slot)
            requests[AHEAD, slot] = 0
            engine.finished[n_finished] = slot
            n_finished += 1
        else:
            running[kept] = slot
            kept += 1
    counts[N_RUNNING] = kept
    counts[STEPS] += 1
    join_cohort(engine)
    if counts[N_STALE] > 0:
        n_finished = _end_stale(engine, n_finished, now_ms)
    return n_finished


@in_place
def _tokens(features: FloatArray) -> float:
    return features[0] + features[1]


@in_place
def _position(computed: int, tokens: int, chunk: int) -> tuple[int, int]:
    """How many tokens of a sequence are computed, and how many there are, after a step.

    It had ``tokens``, of which ``computed``, before, and ``chunk`` are computed in the step.
    """
    computed += chunk
    return computed, tokens + (chunk > 0 and computed == tokens)


@in_place
def ends(computed: int, tokens: int, chunk: int, last: int) -> bool:
    """Whether a step yields the last token of a sequence.

    It has ``tokens``, of which ``computed``, and will have ``last``; ``chunk`` are computed in the
    step.
    """
    return chunk > 0 and computed + chunk == tokens and tokens + 1 == last


@in_place
def _add_features(engine: EngineArrays, row: int) -> None:
    """Add what the running requests behind the cohort do to the features of what it does."""
    requests, n = engine.requests, engine.counts[N_COHORT]
    features = engine.ahead if row == AHEAD else engine.step
    if n == 0:
        for feature in range(features.size):
            features[feature] = 0.0
    prefill, decode, context, attention, ending = 0, 0, 0, 0, 0
    for slot in engine.queues[RUNNING, n : engine.counts[N_RUNNING]]:
        chunk = requests[row, slot]
        if chunk == 0:
            continue
        prompt = requests[PROMPT, slot]
        computed, tokens = _position(
            requests[COMPUTED, slot],
            prompt + requests[GENERATED, slot],
            requests[CHUNK, slot] if row == AHEAD else 0,
        )
        ending += ends(computed, tokens, chunk, prompt + requests[OUTPUT, slot])
        if tokens > prompt and tokens - computed == 1:
            decode += 1
            context += computed
        else:
            prefill += chunk
            attention += chunk * computed + chunk * (chunk + 1) // 2
    features[0] += prefill
    features[1] += decode
    features[2] += context
    features[3] += attention
    features[ENDS] += ending


@in_place
def _schedule_running(engine: EngineArrays, row: int) -> tuple[int, bool]:
    """Chunks of the running requests behind the cohort, which has its tokens.

    Returns:
        The budget left, and whether any was preempted.
    """
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    running = engine.queues[RUNNING]
    budget = limits[MAX_TOKENS]
    if counts[N_COHORT] > 0:
        budget -= int((engine.ahead if row == AHEAD else engine.step)[1])
    preempted = False
    position = counts[N_COHORT]
    while position < counts[N_RUNNING] and budget > 0:
        slot = running[position]
        known = requests[PROMPT, slot] + requests[GENERATED, slot]
        under_way = requests[CHUNK, slot] if row == AHEAD else 0
        last = requests[PROMPT, slot] + requests[OUTPUT, slot]
        if not requests[STOPS, slot] and ends(requests[COMPUTED, slot], known, under_way, last):
            position += 1
            continue
        computed, length = _position(requests[COMPUTED, slot], known, under_way)
        chunk = min(length - computed, budget)
        tokens = computed + chunk
        missing = 0
        # Most steps stay within the blocks there are, and a product is cheaper than a division.
        if tokens > requests[BLOCKS, slot] * limits[BLOCK_SIZE]:
            missing = blocks_of(tokens, limits[BLOCK_SIZE]) - requests[BLOCKS, slot]
        while missing > counts[FREE_BLOCKS]:
            preempted = True
            dissolve_cohort(engine)
            victim = _least_urgent(requests, running[: counts[N_RUNNING]])
            budget += requests[row, running[victim]]
            preempt(engine, row, victim)
            if victim == position:
                return budget, True
            if victim < position:
                position -= 1
        if missing > 0:
            take_blocks(engine, slot, missing)
        if limits[CACHING]:
            # Behind a step under way the text of the last token is not known yet.
            text = min(tokens, known)
            if text >= (requests[KEYED, slot] + 1) * limits[BLOCK_SIZE]:
                key_blocks(engine, slot, text)
        requests[row, slot] = chunk
        budget -= chunk
        position += 1
    return budget, preempted


@in_place
def _admit_waiting(engine: EngineArrays, row: int, budget: int, start_ms: float) -> None:
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
            take_blocks(engine, slot, hit // limits[BLOCK_SIZE])
        requests[COMPUTED, slot] = hit
        tokens = requests[PROMPT, slot] + requests[GENERATED, slot]
        chunk = min(tokens - hit, budget)
        missing = blocks_of(hit + chunk, limits[BLOCK_SIZE]) - requests[BLOCKS, slot]
        take_blocks(engine, slot, missing)
        if limits[CACHING]:
            key_blocks(engine, slot, hit + chunk)
        requests[row, slot] = chunk
        if np.isnan(engine.times[START, slot]):
            engine.times[START, slot] = start_ms
        budget -= chunk
        running[counts[N_RUNNING]] = slot
        counts[N_RUNNING] += 1
        admitted += 1
    if admitted > 0:
        counts[N_WAITING] -= admitted
        for position in range(counts[N_WAITING]):
            waiting[position] = waiting[position + admitted]


@in_place
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


@in_place
def enqueue(requests: IntArray, queues: IntArray, counts: IntArray, slot: int) -> None:
    """Add a request that neither runs nor waits to the waiting ones, at its place by urgency."""
    waiting = queues[WAITING]
    position = counts[N_WAITING]
    while position > 0 and _more_urgent(requests, slot, waiting[position - 1]):
        waiting[position] = waiting[position - 1]
        position -= 1
    waiting[position] = slot
    counts[N_WAITING] += 1


@in_place
def preempt(engine: EngineArrays, row: int, position: int) -> None:
    """Take the blocks of the running request at ``position``, while ``row`` is planned."""
    requests, counts = engine.requests, engine.counts
    running = engine.queues[RUNNING]
    slot = running[position]
    if row == AHEAD and requests[CHUNK, slot] > 0:
        gets_token = requests[COMPUTED, slot] + requests[CHUNK, slot] == (
            requests[PROMPT, slot] + requests[GENERATED, slot]
        )
        requests[STALE, slot] = gets_token
        counts[N_STALE] += gets_token
    release_blocks(engine, slot)
    requests[COMPUTED, slot] = 0
    requests[CACHED, slot] = 0
    requests[CHUNK, slot] = 0
    requests[AHEAD, slot] = 0
    requests[PREEMPTIONS, slot] += 1
    counts[N_RUNNING] -= 1
    for behind in range(position, counts[N_RUNNING]):
        running[behind] = running[behind + 1]
    enqueue(requests, engine.queues, counts, slot)


@in_place
def _end_stale(engine: EngineArrays, n_finished: int, now_ms: float) -> int:
    """Deliver the tokens of requests that were preempted during the step that ends."""
    requests, counts = engine.requests, engine.counts
    waiting = engine.queues[WAITING]
    kept = 0
    for position in range(counts[N_WAITING]):
        slot = waiting[position]
        if requests[STALE, slot]:
            requests[STALE, slot] = 0
            requests[GENERATED, slot] += 1
            if requests[GENERATED, slot] == 1:
                engine.times[FIRST_TOKEN, slot] = now_ms
        if requests[GENERATED, slot] == requests[OUTPUT, slot]:
            engine.finished[n_finished] = slot
            n_finished += 1
        else:
            waiting[kept] = slot
            kept += 1
    counts[N_WAITING] = kept
    counts[N_STALE] = 0
    return n_finished


@in_place
def _more_urgent(requests: IntArray, a: int, b: int) -> bool:
    if requests[PRIORITY, a] != requests[PRIORITY, b]:
        return requests[PRIORITY, a] < requests[PRIORITY, b]
    return requests[ARRIVAL, a] < requests[ARRIVAL, b]


@in_place
def _hit_tokens(engine: EngineArrays, slot: int) -> int:
    """Tokens that a request need not compute if it is admitted now."""
    requests, size = engine.requests, engine.limits[BLOCK_SIZE]
    if engine.limits[CACHING]:
        hits, _ = hit_blocks(engine, slot, requests[PROMPT, slot] + requests[GENERATED, slot] - 1)
        return hits * size
    if requests[CACHED, slot] == 0:
        return 0
    return min(requests[CACHED, slot], requests[PROMPT, slot] - 1) // size * size


@in_place
def _least_urgent(requests: IntArray, slots: IntArray) -> int:
    """Position in ``slots``, which is not empty."""
    worst = 0
    for position in range(1, slots.size):
        if _more_urgent(requests, slots[worst], slots[position]):
            worst = position
    return worst

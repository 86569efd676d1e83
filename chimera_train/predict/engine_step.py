"""One vLLM V1 engine: which tokens each step computes, and how long the step takes.

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

Tokens at the head of a prompt that the engine's prefix cache holds (CACHED) are not computed when
the request is admitted: whole blocks of them, and never the prompt's last token, which has to be
computed to yield an output. They save time and not memory: their blocks are taken from the free
ones, as vLLM does with cached blocks that no running request refers to. Blocks that a running
request shares would take none, but which request shares which block is not known here. A preempted
request gets no hit when it is admitted again: how much of it survives depends on what was evicted
since, which is not modelled either.

Not modelled: asynchronous scheduling, where a step is planned before its predecessor has ended.

The state of an engine is four arrays, so that the rules are compiled functions over them:
``requests`` and ``times`` have one column a request (its *slot*), ``queues`` holds the slots that
run and that wait, and ``counts`` how many those are, the free blocks and the steps so far.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

from chimera_train.predict.step_terms import extrapolates, step_ms

__all__ = [
    "ARRIVAL",
    "BLOCKS",
    "BLOCK_SIZE",
    "CACHED",
    "CHUNK",
    "CHUNKED",
    "COMPUTED",
    "COUNT_ENTRIES",
    "EXTRAPOLATED",
    "FIRST_TOKEN",
    "FREE_BLOCKS",
    "GENERATED",
    "MAX_SEQS",
    "MAX_TOKENS",
    "N_RUNNING",
    "N_WAITING",
    "OUTPUT",
    "PREEMPTIONS",
    "PRIORITY",
    "PROMPT",
    "REQUEST_ROWS",
    "RUNNING",
    "START",
    "STEPS",
    "WAITING",
    "admissible",
    "advance",
    "blocks_of",
    "end_step",
    "enqueue",
    "schedule_step",
    "uncomputed",
]

# Rows of ``requests``. CHUNK: tokens that the current step computes.
PRIORITY, ARRIVAL, PROMPT, OUTPUT, CACHED, COMPUTED, GENERATED, BLOCKS, CHUNK, PREEMPTIONS = range(
    10
)
REQUEST_ROWS = 10
# Rows of ``times``, ms: the start of a request's first step and its first token; NaN until then.
START, FIRST_TOKEN = range(2)
# Rows of ``queues``; the running are in order of admission, the waiting in that of urgency.
RUNNING, WAITING = range(2)
# Entries of ``counts``. EXTRAPOLATED: steps outside what the step-time model was fitted on.
N_RUNNING, N_WAITING, FREE_BLOCKS, STEPS, EXTRAPOLATED = range(5)
COUNT_ENTRIES = 5
# Entries of ``limits``. CHUNKED: whether a prompt may be computed in several steps.
MAX_SEQS, MAX_TOKENS, BLOCK_SIZE, CHUNKED = range(4)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@njit(cache=True)
def schedule_step(
    limits: IntArray,
    requests: IntArray,
    times: FloatArray,
    queues: IntArray,
    counts: IntArray,
    now_ms: float,
) -> tuple[int, int, int, float]:
    """Fill the CHUNK of every request in the step that starts now.

    Returns:
        The step's features, as the step-time model has them: prefill_tokens, decode_tokens,
        decode_ctx_tokens, prefill_attn. All zero where every running request was preempted: such a
        step takes no time.
    """
    budget, preempted = _schedule_running(limits, requests, queues, counts)
    if not preempted:
        _admit_waiting(limits, requests, times, queues, counts, budget, now_ms)
    prefill_tokens, decode_tokens, decode_ctx_tokens, prefill_attn = 0, 0, 0, 0.0
    for slot in queues[RUNNING, : counts[N_RUNNING]]:
        chunk, computed = requests[CHUNK, slot], requests[COMPUTED, slot]
        if requests[GENERATED, slot] > 0 and uncomputed(requests, slot) == 1:
            decode_tokens += chunk
            decode_ctx_tokens += chunk * computed
        else:
            prefill_tokens += chunk
            prefill_attn += chunk * computed + chunk * (chunk + 1) / 2
    return prefill_tokens, decode_tokens, decode_ctx_tokens, prefill_attn


@njit(cache=True)
def end_step(
    requests: IntArray,
    times: FloatArray,
    queues: IntArray,
    counts: IntArray,
    finished: IntArray,
    now_ms: float,
) -> int:
    """Apply the step that ends now.

    Returns:
        The number of requests it finished; ``finished`` begins with their slots. They leave their
        blocks and their place.
    """
    running = queues[RUNNING]
    n_running = counts[N_RUNNING]
    kept, n_finished = 0, 0
    for position in range(n_running):
        slot = running[position]
        chunk = requests[CHUNK, slot]
        requests[COMPUTED, slot] += chunk
        requests[CHUNK, slot] = 0
        if chunk > 0 and uncomputed(requests, slot) == 0:
            requests[GENERATED, slot] += 1
            if requests[GENERATED, slot] == 1:
                times[FIRST_TOKEN, slot] = now_ms
        if requests[GENERATED, slot] == requests[OUTPUT, slot]:
            counts[FREE_BLOCKS] += requests[BLOCKS, slot]
            requests[BLOCKS, slot] = 0
            finished[n_finished] = slot
            n_finished += 1
        else:
            running[kept] = slot
            kept += 1
    counts[N_RUNNING] = kept
    counts[STEPS] += 1
    return n_finished


@njit(cache=True)
def advance(
    limits: IntArray,
    compiled: FloatArray,
    requests: IntArray,
    times: FloatArray,
    queues: IntArray,
    counts: IntArray,
    finished: IntArray,
    now_ms: float,
    horizon_ms: float,
    slowdown: float,
) -> tuple[float, float]:
    """Run steps from now on; stop within the first that finishes a request or passes the horizon.

    That step has begun and not ended: ``end_step`` ends it. An engine that is left alone until
    ``horizon_ms`` shows nothing but tokens before that step's end, so it is enough to stop there.
    ``compiled`` is the step-time model as ``step_terms.step_ms`` takes it, and every step takes
    ``slowdown`` times as long.

    Returns:
        When the begun step started, and its time without slow-down (ms).
    """
    while True:
        prefill, decode, context, attention = schedule_step(
            limits, requests, times, queues, counts, now_ms
        )
        if prefill + decode == 0:
            continue
        duration_ms = step_ms(compiled, prefill, decode, context, attention)
        counts[EXTRAPOLATED] += extrapolates(compiled, prefill, decode, context, attention)
        end_ms = now_ms + duration_ms * slowdown
        if end_ms >= horizon_ms or _finishes_any(requests, queues, counts):
            return now_ms, duration_ms
        end_step(requests, times, queues, counts, finished, end_ms)
        now_ms = end_ms


@njit(cache=True)
def _schedule_running(
    limits: IntArray, requests: IntArray, queues: IntArray, counts: IntArray
) -> tuple[int, bool]:
    """Chunks of the running requests; the budget left, and whether any was preempted."""
    running = queues[RUNNING]
    budget = limits[MAX_TOKENS]
    preempted = False
    position = 0
    while position < counts[N_RUNNING] and budget > 0:
        slot = running[position]
        chunk = min(uncomputed(requests, slot), budget)
        tokens = requests[COMPUTED, slot] + chunk
        missing = 0
        # Most steps stay within the blocks there are, and a product is cheaper than a division.
        if tokens > requests[BLOCKS, slot] * limits[BLOCK_SIZE]:
            missing = blocks_of(tokens, limits[BLOCK_SIZE]) - requests[BLOCKS, slot]
        while missing > counts[FREE_BLOCKS]:
            preempted = True
            victim = _least_urgent(requests, running[: counts[N_RUNNING]])
            budget += requests[CHUNK, running[victim]]
            _preempt(requests, queues, counts, victim)
            if victim == position:
                return budget, True
            if victim < position:
                position -= 1
        counts[FREE_BLOCKS] -= missing
        requests[BLOCKS, slot] += missing
        requests[CHUNK, slot] = chunk
        budget -= chunk
        position += 1
    return budget, preempted


@njit(cache=True)
def _admit_waiting(
    limits: IntArray,
    requests: IntArray,
    times: FloatArray,
    queues: IntArray,
    counts: IntArray,
    budget: int,
    now_ms: float,
) -> None:
    running, waiting = queues[RUNNING], queues[WAITING]
    admitted = 0
    while admitted < counts[N_WAITING] and budget > 0 and counts[N_RUNNING] < limits[MAX_SEQS]:
        slot = waiting[admitted]
        if not admissible(limits, requests, counts, slot, budget):
            break
        hit = _hit_tokens(requests, slot, limits[BLOCK_SIZE])
        chunk = min(uncomputed(requests, slot) - hit, budget)
        blocks = blocks_of(hit + chunk, limits[BLOCK_SIZE])
        counts[FREE_BLOCKS] -= blocks
        requests[BLOCKS, slot] = blocks
        requests[COMPUTED, slot] = hit
        requests[CHUNK, slot] = chunk
        budget -= chunk
        running[counts[N_RUNNING]] = slot
        counts[N_RUNNING] += 1
        admitted += 1
        if np.isnan(times[START, slot]):
            times[START, slot] = now_ms
    if admitted > 0:
        counts[N_WAITING] -= admitted
        for position in range(counts[N_WAITING]):
            waiting[position] = waiting[position + admitted]


@njit(cache=True)
def admissible(
    limits: IntArray, requests: IntArray, counts: IntArray, slot: int, budget: int
) -> bool:
    """Whether a waiting request that has its turn, and a place, can join with ``budget`` tokens."""
    tokens = uncomputed(requests, slot)
    if (
        not limits[CHUNKED]
        and tokens > budget
        and tokens - _hit_tokens(requests, slot, limits[BLOCK_SIZE]) > budget
    ):
        return False
    return blocks_of(tokens, limits[BLOCK_SIZE]) <= counts[FREE_BLOCKS]


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
def _preempt(requests: IntArray, queues: IntArray, counts: IntArray, position: int) -> None:
    running = queues[RUNNING]
    slot = running[position]
    counts[FREE_BLOCKS] += requests[BLOCKS, slot]
    requests[BLOCKS, slot] = 0
    requests[COMPUTED, slot] = 0
    requests[CACHED, slot] = 0
    requests[CHUNK, slot] = 0
    requests[PREEMPTIONS, slot] += 1
    counts[N_RUNNING] -= 1
    running[position : counts[N_RUNNING]] = running[position + 1 : counts[N_RUNNING] + 1].copy()
    enqueue(requests, queues, counts, slot)


@njit(cache=True)
def _finishes_any(requests: IntArray, queues: IntArray, counts: IntArray) -> bool:
    for slot in queues[RUNNING, : counts[N_RUNNING]]:
        completes = requests[CHUNK, slot] == uncomputed(requests, slot)
        if completes and requests[GENERATED, slot] + 1 == requests[OUTPUT, slot]:
            return True
    return False


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
def _hit_tokens(requests: IntArray, slot: int, block_size: int) -> int:
    if requests[CACHED, slot] == 0:
        return 0
    return min(requests[CACHED, slot], requests[PROMPT, slot] - 1) // block_size * block_size


@njit(cache=True)
def _least_urgent(requests: IntArray, slots: IntArray) -> int:
    """Position in ``slots``, which is not empty."""
    worst = 0
    for position in range(1, slots.size):
        if _more_urgent(requests, slots[worst], slots[position]):
            worst = position
    return worst

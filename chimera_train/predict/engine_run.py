"""Many steps of one engine in a row.

Most steps decode one token of every running request, and nobody joins or leaves. A run of them is
applied at once: only the step times are summed one by one, in the order of the single steps, so
that the result is the same to the last bit.
"""

from chimera_train.compiled import in_place
from chimera_train.predict.block_pool import key_blocks, take_blocks
from chimera_train.predict.engine_arrays import (
    ASYNC,
    BLOCK_SIZE,
    BLOCKS,
    CACHING,
    COMPUTED,
    ENDS,
    EXTRAPOLATED,
    FREE_BLOCKS,
    GENERATED,
    MAX_SEQS,
    MAX_TOKENS,
    N_RUNNING,
    N_STALE,
    N_WAITING,
    OUTPUT,
    PROMPT,
    RUNNING,
    STEPS,
    WAITING,
    EngineArrays,
    FloatArray,
)
from chimera_train.predict.engine_step import (
    admissible,
    begin_step,
    blocks_of,
    end_step,
)
from chimera_train.predict.step_terms import extrapolates, step_ms

__all__ = ["advance", "decode_steps", "steps_alike"]


@in_place
def advance(
    engine: EngineArrays,
    compiled: FloatArray,
    now_ms: float,
    horizon_ms: float,
    slowdown: float,
) -> tuple[float, float]:
    """Run steps from now on; stop within the first that finishes a request or passes the horizon.

    That step has begun and not ended: ``end_step`` ends it. An engine that is left alone until
    ``horizon_ms`` shows nothing but tokens before that step's end, so it is enough to stop there.
    ``compiled`` is the step-time model as ``step_terms.step_ms`` takes it, and every step takes
    ``slowdown`` times as long. There must be work.

    Returns:
        When the begun step started, and its time without slow-down (ms).
    """
    features = engine.step
    while True:
        steps = steps_alike(engine)
        if steps > 0:
            now_ms = decode_steps(engine, compiled, steps, now_ms, horizon_ms, slowdown)
        if not begin_step(engine, now_ms):
            continue
        prefill, decode, context, attention = features[0], features[1], features[2], features[3]
        duration_ms = step_ms(compiled, prefill, decode, context, attention)
        engine.counts[EXTRAPOLATED] += extrapolates(compiled, prefill, decode, context, attention)
        end_ms = now_ms + duration_ms * slowdown
        if end_ms >= horizon_ms or _may_finish(engine):
            return now_ms, duration_ms
        end_step(engine, end_ms)
        now_ms = end_ms


@in_place
def steps_alike(engine: EngineArrays) -> int:
    """Steps from here on that decode one token of every running request, and finish nobody.

    Nobody is admitted or preempted in them either. 0 says nothing: the next step may be such a one.
    """
    limits, requests, counts = engine.limits, engine.requests, engine.counts
    n_running = counts[N_RUNNING]
    if n_running == 0 or n_running > limits[MAX_TOKENS]:
        return 0
    if limits[ASYNC] and (engine.ahead[0] > 0 or engine.ahead[1] != n_running):
        return 0
    running = engine.queues[RUNNING]
    steps = 2**62
    # Who was admitted last is the likeliest to have prompt left.
    for position in range(n_running - 1, -1, -1):
        slot = running[position]
        tokens = requests[PROMPT, slot] + requests[GENERATED, slot]
        if requests[GENERATED, slot] == 0 or tokens - requests[COMPUTED, slot] != 1:
            return 0
        steps = min(steps, int(requests[OUTPUT, slot] - requests[GENERATED, slot]) - 1)
    # Memory only gets scarcer and the budget stays, so who cannot join now cannot join later.
    budget = limits[MAX_TOKENS] - n_running
    if (
        counts[N_WAITING] > 0
        and budget > 0
        and n_running < limits[MAX_SEQS]
        and admissible(engine, engine.queues[WAITING, 0], budget)
    ):
        return 0
    if blocks_of(steps, limits[BLOCK_SIZE]) * n_running <= counts[FREE_BLOCKS]:
        return steps
    return _steps_in_memory(engine, steps)


@in_place
def decode_steps(
    engine: EngineArrays,
    compiled: FloatArray,
    steps: int,
    now_ms: float,
    horizon_ms: float,
    slowdown: float,
) -> float:
    """Apply those of so many ``steps_alike`` that end before the horizon; when the last ends.

    The arguments are those of ``advance``.
    """
    counts, requests = engine.counts, engine.requests
    n = counts[N_RUNNING]
    running = engine.queues[RUNNING, :n]
    context = 0
    for slot in running:
        context += requests[COMPUTED, slot]
    done = 0
    while done < steps:
        end_ms = now_ms + slowdown * step_ms(compiled, 0, n, context, 0.0)
        if end_ms >= horizon_ms:
            break
        counts[EXTRAPOLATED] += extrapolates(compiled, 0, n, context, 0.0)
        now_ms = end_ms
        context += n
        done += 1
    if done == 0:
        return now_ms
    if engine.limits[CACHING]:
        _grow_cached(engine, done)
    else:
        _grow(engine, done)
    n_ending = 0
    for slot in running:
        requests[COMPUTED, slot] += done
        requests[GENERATED, slot] += done
        n_ending += requests[GENERATED, slot] + 1 == requests[OUTPUT, slot]
    if engine.limits[ASYNC]:
        engine.ahead[2] = context
        engine.ahead[ENDS] = n_ending
    counts[STEPS] += done
    return now_ms


@in_place
def _grow(engine: EngineArrays, steps: int) -> None:
    """Give every running request the blocks of so many tokens more."""
    requests, size = engine.requests, engine.limits[BLOCK_SIZE]
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        tokens = requests[COMPUTED, slot] + steps + engine.limits[ASYNC]
        if tokens > requests[BLOCKS, slot] * size:
            blocks = blocks_of(tokens, size)
            engine.counts[FREE_BLOCKS] -= blocks - requests[BLOCKS, slot]
            requests[BLOCKS, slot] = blocks


@in_place
def _grow_cached(engine: EngineArrays, steps: int) -> None:
    """The same step by step, since who takes a block first decides what text is lost."""
    requests, size = engine.requests, engine.limits[BLOCK_SIZE]
    for step in range(1, steps + 1):
        for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
            computed = requests[COMPUTED, slot] + step
            if computed + engine.limits[ASYNC] > requests[BLOCKS, slot] * size:
                take_blocks(engine, slot, 1)
            if computed % size == 0:
                key_blocks(engine, slot, computed)


@in_place
def _steps_in_memory(engine: EngineArrays, steps: int) -> int:
    """How many of ``steps`` the free blocks last if every running request decodes in each."""
    requests = engine.requests
    size = engine.limits[BLOCK_SIZE]
    # Requests by the tokens that they have room for; each takes a block every ``size`` steps.
    by_room = engine.room
    for room in range(size):
        by_room[room] = 0
    for slot in engine.queues[RUNNING, : engine.counts[N_RUNNING]]:
        room = requests[BLOCKS, slot] * size - requests[COMPUTED, slot] - engine.limits[ASYNC]
        # A caller's state may hold more blocks than are needed: they may count for nothing here.
        by_room[min(room, size - 1)] += 1
    free = engine.counts[FREE_BLOCKS]
    for step in range(steps):
        free -= by_room[step % size]
        if free < 0:
            return step
    return steps


@in_place
def _may_finish(engine: EngineArrays) -> bool:
    """Whether the step under way finishes a request, or may, or is the last there is."""
    counts = engine.counts
    is_last = counts[N_RUNNING] + counts[N_WAITING] == 0
    return engine.step[ENDS] > 0 or counts[N_STALE] > 0 or is_last

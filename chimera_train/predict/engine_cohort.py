"""The requests of an engine that decode side by side, as one.

Most running requests have their prompt behind them and get one token in every step. The first of
the running ones, as far as each is of that kind, are the *cohort*. A step changes nothing of theirs
but the counts that they share: what a request of the cohort has computed and generated lies
COHORT_STEPS above what its column says. So a step costs the same however many they are, and one
that finishes some of them, a look at each.

A request of the cohort takes a block every ``block_size`` steps. ``room`` has how many take one in
a step, by the step's number; with the prefix cache, which block each takes is kept account of too.

Where they are too many for a step, or for the memory, the step is planned without a cohort: it is
dissolved, and forms again when a step ends. So it must be for whoever reads the columns of running
requests.
"""

from chimera_train.compiled import in_place
from chimera_train.predict.block_pool import blocks_of, key_blocks, release_blocks, take_blocks
from chimera_train.predict.engine_arrays import (
    AHEAD,
    BLOCK_SIZE,
    BLOCKS,
    CACHING,
    CHUNK,
    COHORT_AHEAD,
    COHORT_CHUNK,
    COHORT_CONTEXT,
    COHORT_END,
    COHORT_STEPS,
    COMPUTED,
    ENDS,
    FREE_BLOCKS,
    GENERATED,
    KEYED,
    MAX_TOKENS,
    N_COHORT,
    N_RUNNING,
    OUTPUT,
    PROMPT,
    RUNNING,
    STOPS,
    EngineArrays,
)

__all__ = ["dissolve_cohort", "end_cohort", "join_cohort", "plan_cohort", "take_cohort_blocks"]

_NEVER = 1 << 62


@in_place
def join_cohort(engine: EngineArrays) -> None:
    """Let those join that come next among the running ones, as far as each decodes.

    No step is under way.
    """
    requests, counts = engine.requests, engine.counts
    size = engine.limits[BLOCK_SIZE]
    running = engine.queues[RUNNING]
    while counts[N_COHORT] < counts[N_RUNNING]:
        slot = running[counts[N_COHORT]]
        generated = requests[GENERATED, slot]
        if generated == 0:
            return
        computed, ahead = requests[COMPUTED, slot], requests[AHEAD, slot]
        # Who calls may have given it more blocks than it needs: it takes its next one later then.
        room = requests[BLOCKS, slot] * size - computed - ahead
        if requests[PROMPT, slot] + generated - computed != 1 or not 0 <= room < size:
            return
        if counts[N_COHORT] == 0:
            _found(engine, ahead)
        elif ahead != counts[COHORT_AHEAD]:
            return
        steps = counts[COHORT_STEPS]
        counts[N_COHORT] += 1
        counts[COHORT_CONTEXT] += computed
        counts[COHORT_END] = min(counts[COHORT_END], steps + requests[OUTPUT, slot] - generated)
        engine.room[(steps + ahead + room) % size] += 1
        requests[COMPUTED, slot] -= steps
        requests[GENERATED, slot] -= steps


@in_place
def _found(engine: EngineArrays, ahead: int) -> None:
    counts = engine.counts
    counts[COHORT_STEPS] = counts[COHORT_CONTEXT] = counts[COHORT_CHUNK] = 0
    counts[COHORT_AHEAD] = ahead
    counts[COHORT_END] = _NEVER
    for place in range(engine.limits[BLOCK_SIZE]):
        engine.room[place] = 0


@in_place
def plan_cohort(engine: EngineArrays, row: int) -> None:
    """Give each of the cohort its token in the next step, or dissolve it.

    ``row`` is that of ``engine_step.plan_step``. ``step`` or ``ahead`` become the features of what
    the cohort does, if there is one still.
    """
    counts = engine.counts
    n = counts[N_COHORT]
    if n == 0:
        return
    planned = counts[COHORT_CHUNK] if row == AHEAD else 0
    leaving, context, blocks, end = 0, 0, 0, counts[COHORT_END]
    if counts[COHORT_STEPS] + planned == end:
        leaving, context, blocks, end = _leaving(engine, end)
    if n - leaving > engine.limits[MAX_TOKENS] or not take_cohort_blocks(engine, planned, blocks):
        dissolve_cohort(engine)
        return
    counts[COHORT_AHEAD if row == AHEAD else COHORT_CHUNK] = 1
    features = engine.ahead if row == AHEAD else engine.step
    features[0] = features[3] = 0.0
    features[1] = n - leaving
    features[2] = counts[COHORT_CONTEXT] + n * planned - context
    features[ENDS] = counts[COHORT_STEPS] + planned + 1 == end


@in_place
def _leaving(engine: EngineArrays, steps: int) -> tuple[int, int, int, int]:
    """Who of the cohort has all tokens after ``steps``, and is known to: max_tokens says so.

    Returns:
        How many those are, Σ of their contexts, how many would take a block for one token more, and
        what COHORT_END is without any that end then.
    """
    requests, size = engine.requests, engine.limits[BLOCK_SIZE]
    n, context, blocks, end = 0, 0, 0, _NEVER
    for slot in engine.queues[RUNNING, : engine.counts[N_COHORT]]:
        last = requests[OUTPUT, slot] - requests[GENERATED, slot]
        if last > steps:
            end = min(end, last)
        elif not requests[STOPS, slot]:
            n += 1
            context += requests[COMPUTED, slot] + steps
            blocks += (requests[COMPUTED, slot] + steps) % size == 0
    return n, context, blocks, end


@in_place
def take_cohort_blocks(engine: EngineArrays, planned: int, spared: int) -> bool:
    """Give the cohort the blocks of the token behind ``planned`` ones that it has blocks for.

    ``spared`` of the blocks are not needed, since who would take them is leaving.

    Returns:
        Whether there are enough; nothing has changed if not.
    """
    requests, counts = engine.requests, engine.counts
    size = engine.limits[BLOCK_SIZE]
    steps = counts[COHORT_STEPS] + planned
    missing = engine.room[steps % size] - spared
    if missing > counts[FREE_BLOCKS]:
        return False
    if not engine.limits[CACHING]:
        counts[FREE_BLOCKS] -= missing
        return True
    for slot in engine.queues[RUNNING, : counts[N_COHORT]]:
        is_last = requests[OUTPUT, slot] - requests[GENERATED, slot] == steps
        if is_last and not requests[STOPS, slot]:
            continue
        if requests[COMPUTED, slot] + steps == requests[BLOCKS, slot] * size:
            take_blocks(engine, slot, 1)
        # Behind a step under way the text of the last token is not known yet.
        text = requests[COMPUTED, slot] + counts[COHORT_STEPS] + 1
        if text >= (requests[KEYED, slot] + 1) * size:
            key_blocks(engine, slot, text)
    return True


@in_place
def end_cohort(engine: EngineArrays) -> int:
    """Apply the step that ends now to the cohort.

    Returns:
        The number of requests it finished, with whose slots ``finished`` begins; they have left
        the cohort, but not the running ones behind it their place.
    """
    requests, counts = engine.requests, engine.counts
    running = engine.queues[RUNNING]
    n = counts[N_COHORT]
    if n == 0:
        return 0
    counts[COHORT_STEPS] += counts[COHORT_CHUNK]
    counts[COHORT_CONTEXT] += n * counts[COHORT_CHUNK]
    counts[COHORT_CHUNK] = 0
    steps = counts[COHORT_STEPS]
    if steps < counts[COHORT_END]:
        return 0
    kept, n_finished, end = 0, 0, _NEVER
    for position in range(n):
        slot = running[position]
        last = requests[OUTPUT, slot] - requests[GENERATED, slot]
        if last == steps:
            engine.room[-requests[COMPUTED, slot] % engine.limits[BLOCK_SIZE]] -= 1
            _catch_up(engine, slot)
            counts[COHORT_CONTEXT] -= requests[COMPUTED, slot]
            if engine.limits[CACHING]:
                key_blocks(engine, slot, requests[COMPUTED, slot])
            release_blocks(engine, slot)
            requests[AHEAD, slot] = 0
            engine.finished[n_finished] = slot
            n_finished += 1
        else:
            end = min(end, last)
            running[kept] = slot
            kept += 1
    counts[N_COHORT] = kept
    counts[COHORT_END] = end
    return n_finished


@in_place
def dissolve_cohort(engine: EngineArrays) -> None:
    """Bring the columns of its requests up to date, so that there is no cohort."""
    for slot in engine.queues[RUNNING, : engine.counts[N_COHORT]]:
        _catch_up(engine, slot)
    engine.counts[N_COHORT] = 0


@in_place
def _catch_up(engine: EngineArrays, slot: int) -> None:
    requests, counts = engine.requests, engine.counts
    chunk, ahead = counts[COHORT_CHUNK], counts[COHORT_AHEAD]
    requests[COMPUTED, slot] += counts[COHORT_STEPS]
    requests[GENERATED, slot] += counts[COHORT_STEPS]
    if requests[GENERATED, slot] + chunk == requests[OUTPUT, slot] and not requests[STOPS, slot]:
        ahead = 0  # it is leaving
    requests[CHUNK, slot] = chunk
    requests[AHEAD, slot] = ahead
    requests[BLOCKS, slot] = blocks_of(
        requests[COMPUTED, slot] + chunk + ahead, engine.limits[BLOCK_SIZE]
    )

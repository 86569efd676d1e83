"""Many steps of one engine in a row.

Most steps decode one token of every running request, and nobody joins or leaves. Of a run of them
only the step times are summed one by one, in the order of the single steps, so that the result is
the same to the last bit.
"""

from chimera_train.compiled import in_place
from chimera_train.predict.engine_arrays import (
    ASYNC,
    COHORT_AHEAD,
    COHORT_CONTEXT,
    COHORT_END,
    COHORT_STEPS,
    ENDS,
    EXTRAPOLATED,
    MAX_SEQS,
    MAX_TOKENS,
    N_COHORT,
    N_RUNNING,
    N_STALE,
    N_WAITING,
    STEPS,
    WAITING,
    EngineArrays,
    FloatArray,
)
from chimera_train.predict.engine_cohort import take_cohort_blocks
from chimera_train.predict.engine_step import admissible, begin_step, end_step
from chimera_train.predict.step_terms import extrapolates, step_ms

__all__ = ["advance", "decode_steps"]


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
        now_ms = decode_steps(engine, compiled, now_ms, horizon_ms, slowdown)
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
def decode_steps(
    engine: EngineArrays,
    compiled: FloatArray,
    now_ms: float,
    horizon_ms: float,
    slowdown: float,
) -> float:
    """Apply what steps there are from now on that decode one token of every running request.

    They end before the horizon, and nobody is finished, admitted or preempted in them. None says
    nothing: the next step may be such a one. The arguments are those of ``advance``.

    Returns:
        When the last one ends.
    """
    counts = engine.counts
    if not _only_decodes(engine):
        return now_ms
    n, context, planned = counts[N_COHORT], counts[COHORT_CONTEXT], counts[COHORT_AHEAD]
    while counts[COHORT_STEPS] + 1 < counts[COHORT_END]:
        end_ms = now_ms + slowdown * step_ms(compiled, 0, n, context, 0.0)
        if end_ms >= horizon_ms or not take_cohort_blocks(engine, planned, 0):
            break
        counts[EXTRAPOLATED] += extrapolates(compiled, 0, n, context, 0.0)
        now_ms = end_ms
        context += n
        counts[COHORT_STEPS] += 1
        counts[STEPS] += 1
    counts[COHORT_CONTEXT] = context
    if engine.limits[ASYNC]:
        engine.ahead[2] = context
        engine.ahead[ENDS] = counts[COHORT_STEPS] + 1 == counts[COHORT_END]
    return now_ms


@in_place
def _only_decodes(engine: EngineArrays) -> bool:
    """Whether nobody runs but the cohort, and nobody can join it."""
    limits, counts = engine.limits, engine.counts
    n = counts[N_COHORT]
    if n == 0 or n < counts[N_RUNNING] or n > limits[MAX_TOKENS]:
        return False
    if limits[ASYNC] and (engine.ahead[0] > 0 or engine.ahead[1] != n):
        return False
    # Memory only gets scarcer and the budget stays, so who cannot join now cannot join later.
    budget = limits[MAX_TOKENS] - n
    return not (
        counts[N_WAITING] > 0
        and budget > 0
        and n < limits[MAX_SEQS]
        and admissible(engine, engine.queues[WAITING, 0], budget)
    )


@in_place
def _may_finish(engine: EngineArrays) -> bool:
    """Whether the step under way finishes a request, or may, or is the last there is."""
    counts = engine.counts
    is_last = counts[N_RUNNING] + counts[N_WAITING] == 0
    return engine.step[ENDS] > 0 or counts[N_STALE] > 0 or is_last

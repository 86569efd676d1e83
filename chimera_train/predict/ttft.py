"""TTFT and completion of a request, were it sent to an engine now (SFS §4).

The requests in the engine, with the output lengths predicted for them, and the new one behind them
are run through the engine's own batching rules (``engine_step``) until the new one yields its first
token, or its last; the estimate is the sum of the step times. Nobody else is assumed to arrive.
"""

import math

import numpy as np
from numba import njit

from chimera_train.compiled import in_place
from chimera_train.predict.engine_arrays import (
    AHEAD,
    ARRIVAL,
    ASYNC,
    BLOCK_SIZE,
    CACHED,
    CACHING,
    EXPECTED,
    FIRST_TOKEN,
    FREE_BLOCKS,
    GENERATED,
    N_RUNNING,
    N_WAITING,
    OUTPUT,
    OVERRUN,
    PRIORITY,
    PROMPT,
    REQUEST_ROWS,
    RUNNING,
    WAITING,
    EngineArrays,
    FloatArray,
)
from chimera_train.predict.engine_run import decode_steps
from chimera_train.predict.engine_state import empty_engine, max_request_tokens
from chimera_train.predict.engine_step import begin_step, end_step, enqueue, plan_step
from chimera_train.predict.step_terms import step_ms
from chimera_train.predict.step_time import StepTimeModel

__all__ = ["TtftEstimator", "copy_expected", "empty_like", "first_and_last_ms"]


class TtftEstimator:
    """Estimates for one engine.

    Args:
        model: step times, and the engine's limits.
    """

    def __init__(self, model: StepTimeModel) -> None:
        self._info = model.engine
        self._by_priority = model.engine.scheduling_policy == "priority"
        self._compiled = model.compiled()
        self._longest = max_request_tokens(model.engine)

    def estimate(
        self,
        state: EngineArrays,
        prompt_tokens: int,
        cached_tokens: int,
        output_tokens: int,
        priority: int,
        *,
        busy_ms: float,
        completion: bool,
    ) -> tuple[float, float]:
        """When a new request would have its first token and its last, from now in ms.

        An output predicted to go on for longer than the engine can hold the request is taken to
        end there. A request in the engine that has outlived its prediction is taken to go on for
        its overrun, which doubles as in ``monitor.stream``; without one, to end with its next
        token.

        Args:
            state: the requests in the engine as the last step that ended left them, as
                ``engine_with`` makes it; not changed.
            prompt_tokens: of the whole prompt.
            cached_tokens: tokens at its head that the engine's prefix cache holds.
            output_tokens: predicted, at least 1.
            priority: vLLM's, lower first; nothing to an engine that serves in order of arrival.
            busy_ms: until the step under way ends; 0 if there is none.
            completion: whether to go on to the last token, which takes longer to compute.

        Returns:
            Milliseconds to the first token and to the last; the latter NaN if not asked for. Both
            infinite if the engine can never run the request, or is held up for good by one that it
            can never run.
        """
        if prompt_tokens + 1 > self._longest:
            return math.inf, math.inf if completion else math.nan
        first_token_ms, completion_ms = _estimate(
            state,
            self._compiled,
            self._longest,
            int(prompt_tokens),
            int(cached_tokens),
            int(output_tokens),
            int(priority) if self._by_priority else 0,
            float(busy_ms),
            bool(completion),
        )
        return first_token_ms, completion_ms

    def warm_up(self) -> None:
        """Compile, or load what an earlier process compiled, so that no request waits for it."""
        empty = empty_engine(self._info, 1)
        self.estimate(empty, 1, 0, 1, 0, busy_ms=0.0, completion=True)


@njit(cache=True, nogil=True)
def _estimate(
    state: EngineArrays,
    compiled: FloatArray,
    longest: int,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    priority: int,
    busy_ms: float,
    completion: bool,
) -> tuple[float, float]:
    # Allocating here is cheaper than passing arrays in, and lets threads share an estimator.
    capacity = state.counts[N_RUNNING] + state.counts[N_WAITING] + 1
    scratch = EngineArrays(
        np.empty_like(state.limits),
        np.empty((REQUEST_ROWS, capacity), dtype=np.int64),
        np.empty((2, capacity)),
        np.empty((2, capacity), dtype=np.int64),
        np.empty_like(state.counts),
        np.empty_like(state.step),
        np.empty_like(state.ahead),
        np.empty(capacity, dtype=np.int64),
        np.empty(state.limits[BLOCK_SIZE], dtype=np.int64),
        state.blocks,
        state.table,
        state.prompt_keys,
        state.cache,
    )
    copy_expected(state, scratch, longest)
    return first_and_last_ms(
        scratch,
        compiled,
        longest,
        prompt_tokens,
        cached_tokens,
        output_tokens,
        priority,
        busy_ms,
        completion,
    )


@in_place
def copy_expected(state: EngineArrays, scratch: EngineArrays, longest: int) -> None:
    """Copy an engine's requests, with the outputs that are expected of them, into ``scratch``.

    They go into its first slots, in the order of the queues; it has room for one more. ``longest``
    is what ``max_request_tokens`` says of the engine, which has no cohort.
    """
    requests = scratch.requests
    slot = 0
    for queue in (RUNNING, WAITING):
        for position in range(state.counts[N_RUNNING if queue == RUNNING else N_WAITING]):
            source = state.queues[queue, position]
            for row in range(REQUEST_ROWS):
                requests[row, slot] = state.requests[row, source]
            output, overrun = requests[EXPECTED, slot], requests[OVERRUN, slot]
            while output <= requests[GENERATED, slot] and overrun > 0:
                output += overrun
                overrun *= 2
            output = min(output, longest - requests[PROMPT, slot])
            requests[OUTPUT, slot] = max(output, requests[GENERATED, slot] + 1)
            scratch.queues[queue, position] = slot
            slot += 1
    for count in range(state.counts.size):
        scratch.counts[count] = state.counts[count]
    for feature in range(state.ahead.size):
        scratch.ahead[feature] = state.ahead[feature]
    _copy_limits(state, scratch)


@in_place
def empty_like(state: EngineArrays, scratch: EngineArrays, usable_blocks: int) -> None:
    """Make ``scratch`` the same engine without requests, of so many free KV blocks."""
    for count in range(state.counts.size):
        scratch.counts[count] = 0
    scratch.counts[FREE_BLOCKS] = usable_blocks
    for feature in range(state.ahead.size):
        scratch.ahead[feature] = 0.0
    _copy_limits(state, scratch)


@in_place
def _copy_limits(state: EngineArrays, scratch: EngineArrays) -> None:
    for limit in range(state.limits.size):
        scratch.limits[limit] = state.limits[limit]
    scratch.limits[CACHING] = 0  # the scratch engine does not know what its blocks hold


@in_place
def first_and_last_ms(
    engine: EngineArrays,
    compiled: FloatArray,
    longest: int,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    priority: int,
    busy_ms: float,
    completion: bool,
) -> tuple[float, float]:
    """``TtftEstimator.estimate`` on an engine of ``copy_expected``, which is used up."""
    requests, times, counts, step = engine.requests, engine.times, engine.counts, engine.step
    new = counts[N_RUNNING] + counts[N_WAITING]
    if engine.limits[ASYNC] and busy_ms > 0 and engine.ahead[0] + engine.ahead[1] == 0:
        # The step behind the one under way was planned before the new request came.
        plan_step(engine, AHEAD, np.nan)
    end_step(engine, 0.0)
    for row in range(REQUEST_ROWS):
        requests[row, new] = 0
    requests[PRIORITY, new] = priority
    requests[PROMPT, new] = prompt_tokens
    requests[OUTPUT, new] = max(min(output_tokens, longest - prompt_tokens), 1)
    requests[CACHED, new] = cached_tokens
    for slot in range(new):
        requests[ARRIVAL, new] = max(requests[ARRIVAL, new], requests[ARRIVAL, slot] + 1)
    enqueue(requests, engine.queues, counts, new)

    now_ms = busy_ms
    times[FIRST_TOKEN, new] = np.nan
    while True:
        now_ms = decode_steps(engine, compiled, now_ms, np.inf, 1.0)
        idle = counts[N_RUNNING] == 0
        if begin_step(engine, now_ms):
            now_ms += step_ms(compiled, step[0], step[1], step[2], step[3])
            end_step(engine, now_ms)
        elif idle:
            # The most urgent request does not even fit an empty engine.
            first_ms = np.inf if np.isnan(times[FIRST_TOKEN, new]) else times[FIRST_TOKEN, new]
            return first_ms, (np.inf if completion else np.nan)
        if not completion and times[FIRST_TOKEN, new] >= 0:
            return times[FIRST_TOKEN, new], np.nan
        if requests[GENERATED, new] == requests[OUTPUT, new]:
            return times[FIRST_TOKEN, new], now_ms

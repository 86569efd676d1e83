"""What the times at which tokens arrive tell about the steps of an engine, seen from outside.

A sequence that decodes gains one token a step, so while a batch decodes a step lasts as long as the
gap between two tokens of a sequence. A prompt that arrives meanwhile is computed in the step that
also yields its first token: the gap before that token is the mixed step.

TTFT is the engine's steps and what HTTP, the tokenizer and the scheduler's waking add to a request
(the *floor*). One prompt length after another cannot tell the floor from the constant part of a
step, since both are paid once. But the step of a prompt of one token is that of a sequence which
decodes at a context of nearly nothing, and that is a gap: the floor is the TTFT of such a prompt
minus the gap after it. What HTTP costs per prompt token cannot be told from what the engine does
per token, and stays in the prefill steps.

A server or a client that is kept from running hands several tokens on at once: those came late.

Times are seconds on any clock; ``times[i][j]`` is when token j of sequence i arrived. A row has the
columns of the trace table ``steps`` that can be known; times in it are ms.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from chimera_train.collect.step_log import batch_shape

__all__ = ["Row", "Times", "decode_row", "floor_s", "mixed_row", "prefill_row", "ttft_s"]

Row = dict[str, Any]
Times = Sequence[Sequence[float]]

# Fewer steps, between tokens whose times are those of a network, say little of a single one.
_MIN_STEPS = 5
# No engine makes a step in less: tokens of a sequence that are closer came together.
_SHORTEST_STEP_S = 0.0003


def ttft_s(sent_s: float, times: Sequence[float]) -> float | None:
    """Time to first token; None if that came late, together with the second."""
    return None if times[1] - times[0] < _SHORTEST_STEP_S else times[0] - sent_s


def floor_s(sent_s: float, times: Sequence[float]) -> float | None:
    """What a request costs beside its steps, from a prompt of one token and the tokens after it.

    None if tokens came late.
    """
    first_s = ttft_s(sent_s, times)
    return None if first_s is None else first_s - median(_gaps(times))


def prefill_row(first_token_s: float, floor: float, prompt_tokens: int, budget: int) -> Row | None:
    """The step of a prompt that was alone in the engine; None if it took no longer than the floor.

    ``first_token_s`` is its TTFT. A prompt of several times ``budget`` tokens, the most in a step,
    takes as many steps of ``budget``: the row is their mean.
    """
    if first_token_s <= floor:
        return None
    steps = -(-prompt_tokens // budget)
    chunk = prompt_tokens // steps
    shape = batch_shape((chunk, chunk * step, prompt_tokens) for step in range(steps))
    return {
        **shape._asdict(),
        "prefill_tokens": chunk,
        "n_prefill": 1,
        "n_seqs": 1,
        "prefill_attn": shape.prefill_attn / steps,
        "step_ms": (first_token_s - floor) * 1000 / steps,
    }


def decode_row(times: Times, prompt_tokens: int) -> Row | None:
    """The mean step while all sequences decoded, each after ``prompt_tokens``; None if too few."""
    latest = max(times, key=lambda tokens: tokens[0])
    end_s = min(tokens[-1] for tokens in times)
    first, last = 0, sum(time <= end_s for time in latest) - 1
    late = [gap < _SHORTEST_STEP_S for gap in _gaps(latest)]
    while first < last and late[first]:
        first += 1
    while first < last and late[last - 1]:
        last -= 1 if last > 1 and late[last - 2] else 2  # the first that came late, too
    # An odd number, so that the step in the middle has the mean context.
    steps = last - first - 1 + (last - first) % 2
    if steps < _MIN_STEPS:
        return None
    shape = _decoding(times, prompt_tokens, latest, first + (steps + 1) // 2)
    step_s = (latest[first + steps] - latest[first]) / steps
    return {**batch_shape(shape)._asdict(), "step_ms": step_s * 1000}


def mixed_row(
    times: Times, prompt_tokens: int, arrivals_s: Sequence[float], arriving_tokens: int
) -> Row | None:
    """A step in which a prompt of ``arriving_tokens`` was computed beside a decoding batch.

    The median of several, whose first tokens came at ``arrivals_s``; None if none can be told.
    Which token of the batch came with them may be one off, so the step and its two neighbours are
    measured together and two steps of the batch alone subtracted.
    """
    latest = max(times, key=lambda tokens: tokens[0])
    end_s = min(tokens[-1] for tokens in times)
    gaps = _gaps(latest)
    alone_s = median(gaps)
    found = []
    for arrival_s in arrivals_s:
        step = min(range(len(latest)), key=lambda j: abs(latest[j] - arrival_s))
        if not (2 <= step < len(latest) - 2 and latest[step + 1] <= end_s):
            continue
        if min(alone_s, gaps[step - 2], gaps[step + 1]) >= _SHORTEST_STEP_S:  # neither end is late
            found.append((latest[step + 1] - latest[step - 2] - 2 * alone_s, step))
    step_s = median(seconds for seconds, _ in found) if found else 0.0
    if step_s <= alone_s / 2:  # a prompt makes no step faster: that is noise
        return None
    step = round(fmean(step for _, step in found))
    arriving = (arriving_tokens, 0, arriving_tokens)
    shape = batch_shape([*_decoding(times, prompt_tokens, latest, step), arriving])
    return {**shape._asdict(), "step_ms": step_s * 1000}


def _gaps(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def _decoding(
    times: Times, prompt_tokens: int, latest: Sequence[float], step: int
) -> list[tuple[int, int, int]]:
    """The sequences, as ``batch_shape`` takes them, in the step that made token ``step``."""
    middle_s = (latest[step - 1] + latest[step]) / 2
    computed = [prompt_tokens + bisect_left(tokens, middle_s) - 1 for tokens in times]
    return [(1, tokens, prompt_tokens) for tokens in computed]

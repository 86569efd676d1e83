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

Times are seconds on any clock; ``times[i][j]`` is when token j of sequence i arrived. A row has the
columns of the trace table ``steps`` that can be known; times in it are ms.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from chimera_train.collect.step_log import batch_shape

__all__ = ["Row", "Times", "decode_row", "floor_s", "mixed_row", "prefill_row"]

Row = dict[str, Any]
Times = Sequence[Sequence[float]]

# Fewer steps, between tokens whose times are those of a network, say little of a single one.
_MIN_STEPS = 5


def floor_s(sent_s: float, times: Sequence[float]) -> float:
    """What a request costs beside its steps, from a prompt of one token and the tokens after it."""
    return times[0] - sent_s - median(after - before for before, after in pairwise(times))


def prefill_row(ttft_s: float, floor: float, prompt_tokens: int, budget: int) -> Row | None:
    """The step of a prompt that was alone in the engine; None if it took no longer than the floor.

    A prompt of several times ``budget`` tokens, the most in a step, takes as many steps of
    ``budget``: the row is their mean.
    """
    if ttft_s <= floor:
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
        "step_ms": (ttft_s - floor) * 1000 / steps,
    }


def decode_row(times: Times, prompt_tokens: int) -> Row | None:
    """The mean step while all sequences decoded, each after ``prompt_tokens``; None if too few."""
    latest = max(times, key=lambda tokens: tokens[0])
    end_s = min(tokens[-1] for tokens in times)
    steps = sum(time <= end_s for time in latest) - 1
    # An odd number, so that the step in the middle has the mean context.
    steps -= 1 - steps % 2
    if steps < _MIN_STEPS:
        return None
    shape = _decoding(times, prompt_tokens, latest, (steps + 1) // 2)
    return {**batch_shape(shape)._asdict(), "step_ms": (latest[steps] - latest[0]) * 1000 / steps}


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
    alone_s = median(after - before for before, after in pairwise(latest))
    found = []
    for arrival_s in arrivals_s:
        step = min(range(len(latest)), key=lambda j: abs(latest[j] - arrival_s))
        if 2 <= step < len(latest) - 1 and latest[step + 1] <= end_s:
            found.append((latest[step + 1] - latest[step - 2] - 2 * alone_s, step))
    step_s = median(seconds for seconds, _ in found) if found else 0.0
    if step_s <= 0:
        return None
    step = round(fmean(step for _, step in found))
    arriving = (arriving_tokens, 0, arriving_tokens)
    shape = batch_shape([*_decoding(times, prompt_tokens, latest, step), arriving])
    return {**shape._asdict(), "step_ms": step_s * 1000}


def _decoding(
    times: Times, prompt_tokens: int, latest: Sequence[float], step: int
) -> list[tuple[int, int, int]]:
    """The sequences, as ``batch_shape`` takes them, in the step that made token ``step``."""
    middle_s = (latest[step - 1] + latest[step]) / 2
    computed = [prompt_tokens + bisect_left(tokens, middle_s) - 1 for tokens in times]
    return [(1, tokens, prompt_tokens) for tokens in computed]

"""Whether step times can be the milliseconds that they are said to be.

No engine is fast enough to be judged by the numbers alone, from a pocket model to one on eight
GPUs, but some things hold for all of them. A step starts kernels and schedules requests, which
takes a tenth of a millisecond at the least. It reads the model's weights, so one with many tokens
is never much faster than the quickest that only decode. And tokens share those weights, so it is
never much slower than its tokens one by one, stalls aside.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

__all__ = ["implausible"]

# The quickest tenth of the steps of any engine: the launch of its kernels, and a model of 100 GB on
# a slow CPU.
_QUICKEST_MS = (0.1, 10_000.0)
# Times of one unit differ less than this among the quickest steps and from token to token; seconds
# and milliseconds differ by 1000.
_FACTOR = 30.0
# A few steps may stall for seconds.
_STALLED = 0.1


def implausible(frame: pd.DataFrame) -> str | None:
    """Why the step times of ``frame`` cannot all be milliseconds; None if they can.

    ``frame`` has prefill_tokens, decode_tokens, step_ms above 0, and n_steps where its rows stand
    for several steps.
    """
    n_steps = frame.get("n_steps", 1.0)
    per_step = frame["step_ms"] / n_steps
    decode_only = frame["prefill_tokens"] == 0
    quickest = float(np.quantile(per_step[decode_only] if decode_only.any() else per_step, 0.1))
    low, high = _QUICKEST_MS
    if quickest < low:
        return (
            f"a tenth of them take {quickest:.2g} ms or less, which no engine does: are they"
            " seconds?"
        )
    if quickest > high:
        return (
            f"nine in ten take more than {quickest:.2g} ms, which no engine does: are they"
            " microseconds?"
        )
    tokens = (frame["prefill_tokens"] + frame["decode_tokens"]) / n_steps
    fast = int((per_step < quickest / _FACTOR).sum())
    slow = int((per_step > quickest * _FACTOR * tokens).sum())
    if fast:
        return (
            f"{fast} take less than a {_FACTOR:g}th of the {quickest:.2g} ms that the quickest"
            " take: are some seconds, others milliseconds?"
        )
    if slow > _STALLED * len(frame):
        return (
            f"{slow} take more than {_FACTOR:g} times as long as their tokens one by one: are some"
            " seconds, others milliseconds?"
        )
    return None

"""Rows that stand for several steps timed together, such as a whole run of a batch of requests.

Every count of such a row, and its time, is the sum over its steps. A model that is linear in the
counts predicts the sum exactly; one with a knee, a table or terms of mixed steps needs each step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.predict.step_terms import KINDS, TERMS

__all__ = ["COUNTS_OF_STEPS", "complete", "is_summed", "sums_exactly", "tells_apart", "term_sums"]

COUNTS_OF_STEPS = ("n_steps", "n_prefill_steps", "n_decode_steps", "n_batched_steps")
"""Of a row: its steps, and how many of them have prefill tokens, have decoding sequences, and have
more than one token."""

_COLUMN_OF = {
    "const": "n_steps",
    "batched": "n_batched_steps",
    "prefill_tokens": "prefill_tokens",
    "decode_tokens": "decode_tokens",
    "decode_ctx_tokens": "decode_ctx_tokens",
    "prefill_attn": "prefill_attn",
}
# Prefill and decode tokens that keep this close to one ratio have no separate costs.
_SAME_RATIO = 1.1


def is_summed(frame: pd.DataFrame) -> bool:
    """Whether any row stands for several steps (``complete`` has run)."""
    return "n_steps" in frame


def complete(frame: pd.DataFrame) -> pd.DataFrame:
    """``frame`` with all of ``COUNTS_OF_STEPS``, or with none of them if every row is one step.

    A count that the source does not give is filled in where it follows: a row of one step, or one
    without prefill or without decoding, whose steps are then taken to be alike. It stays empty
    otherwise.
    """
    if "n_steps" not in frame:
        return frame.drop(columns=[name for name in COUNTS_OF_STEPS if name in frame])
    n_steps = frame["n_steps"].fillna(1)
    if (n_steps == 1).all():
        return frame.drop(columns=[name for name in COUNTS_OF_STEPS if name in frame])
    prefill, decode = frame["prefill_tokens"] > 0, frame["decode_tokens"] > 0
    follows = (n_steps == 1) | ~(prefill & decode)
    tokens = frame["prefill_tokens"] + frame["decode_tokens"]
    filled = {
        "n_prefill_steps": n_steps.where(prefill, 0),
        "n_decode_steps": n_steps.where(decode, 0),
        "n_batched_steps": n_steps.where(tokens > n_steps, 0),
    }
    columns = {"n_steps": n_steps}
    for name, value in filled.items():
        given = frame[name] if name in frame else pd.Series(np.nan, index=frame.index)
        columns[name] = given.fillna(value.where(follows))
    return frame.assign(**columns)


def sums_exactly(kind: str) -> bool:
    """Whether a model of ``kind`` predicts a sum of steps from the sums of their counts."""
    features = {feature for term in KINDS[kind].terms for feature in TERMS[term].features}
    return KINDS[kind].table is None and features <= set(_COLUMN_OF)


def tells_apart(frame: pd.DataFrame) -> bool:
    """Whether prefill and decode tokens vary independently enough to have a cost each."""
    prefill, decode = frame["prefill_tokens"], frame["decode_tokens"]
    if not ((prefill > 0) & (decode > 0)).all():
        return True
    ratio = prefill / decode
    return bool(ratio.quantile(0.9) > _SAME_RATIO * ratio.quantile(0.1))


def term_sums(terms: Iterable[str], frame: pd.DataFrame) -> npt.NDArray[np.float64]:
    """What the coefficient of each of the ``terms`` is multiplied by, shape (n, n_terms)."""
    return np.column_stack(
        [
            frame[[_COLUMN_OF[feature] for feature in TERMS[term].features]].sum(axis=1)
            for term in terms
        ]
    )

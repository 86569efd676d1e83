"""The terms of step-time models, and the compiled function that adds them up.

A step computes ``prefill_tokens`` prompt tokens and ``decode_tokens`` sequences that decode one
token each. Its cost has three parts (Eq. 9 of SFS, §4, has the first of each):

- matrix products over all tokens: linear in them, or a table over their number, since the time
  rises in jumps where a batch fills another tile of the processor;
- reading the KV cache of the decoding sequences (``decode_ctx_tokens``), which is slower in a mixed
  batch than in one that only decodes;
- attention of the prefill chunks (``prefill_attn``), and what each of these costs once.

A step of a single token is cheaper than one of two or more (``batched``): it multiplies matrices by
a vector, for which there are other kernels.

A model is packed into one array, its *compiled* form, so that every compiled loop can take any
kind: the smallest and the largest value seen of each of ``AXES``, a coefficient for each of
``FEATURES``, and the token table (first the tokens, then the milliseconds).
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from chimera_train.compiled import in_place

__all__ = [
    "AXES",
    "COUNTS",
    "FEATURES",
    "KINDS",
    "TERMS",
    "Kind",
    "Term",
    "compile_model",
    "extrapolates",
    "step_ms",
    "step_ms_of_each",
]

Floats = npt.NDArray[np.float64]

COUNTS = ("prefill_tokens", "decode_tokens", "decode_ctx_tokens", "prefill_attn")
"""What is known of a step: the arguments of :func:`step_ms`, in that order."""

AXES = ("prefill_tokens", "decode_tokens", "prefill_ctx", "mean_decode_ctx")
"""In what batches differ: tokens of each kind, and the mean context that each kind attends to."""

FEATURES = (
    "const",
    "prefill_tokens",
    "decode_tokens",
    "decode_ctx_tokens",
    "prefill_attn",
    "prefill_ctx",
    "mixed",
    "mixed_decode_tokens",
    "mixed_decode_ctx_tokens",
    "mixed_mean_decode_ctx",
    "batched",
)
"""What a coefficient can be of. ``prefill_ctx`` is prefill_attn per prefill token, the mean context
that they attend to; the ``mixed`` ones are 0 unless the batch has both kinds of tokens, and
``batched`` is 1 if it has more than one token."""

# Where the parts of a compiled model end.
_LIMITS = 2 * len(AXES)
_COEFFICIENTS = _LIMITS + len(FEATURES)


class Term(NamedTuple):
    """A term of a model: the unit of its coefficient and the features it is the sum of."""

    unit: str
    features: tuple[str, ...]


TERMS: Mapping[str, Term] = {
    "const": Term("ms", ("const",)),
    "tokens": Term("ms/token", ("prefill_tokens", "decode_tokens")),
    "prefill_tokens": Term("ms/token", ("prefill_tokens",)),
    "decode_tokens": Term("ms/token", ("decode_tokens",)),
    "decode_ctx_tokens": Term("ms/token", ("decode_ctx_tokens",)),
    "prefill_attn": Term("ms/token^2", ("prefill_attn",)),
    "prefill_ctx": Term("ms/token", ("prefill_ctx",)),
    "mixed": Term("ms", ("mixed",)),
    "mixed_decode_tokens": Term("ms/token", ("mixed_decode_tokens",)),
    "mixed_decode_ctx_tokens": Term("ms/token", ("mixed_decode_ctx_tokens",)),
    "mixed_mean_decode_ctx": Term("ms/token", ("mixed_mean_decode_ctx",)),
    "batched": Term("ms", ("batched",)),
}


class Kind(NamedTuple):
    """A kind of model: its terms, what its token table is, and the counts it needs.

    ``table`` is "knee" for one bend, at a number of tokens that the fit finds, "free" for a curve
    through many points, and None for a model without a table.
    """

    terms: tuple[str, ...]
    table: Literal["knee", "free"] | None = None
    needs: tuple[str, ...] = COUNTS


KINDS: Mapping[str, Kind] = {
    "tokens": Kind(("const", "tokens"), needs=("prefill_tokens", "decode_tokens")),
    "memory": Kind(
        ("const", "batched", "tokens", "decode_ctx_tokens"),
        needs=("prefill_tokens", "decode_tokens", "decode_ctx_tokens"),
    ),
    "eq9": Kind(
        ("const", "prefill_tokens", "decode_tokens", "decode_ctx_tokens", "prefill_attn"),
    ),
    "eq9-plus": Kind(
        (
            "const",
            "tokens",
            "decode_tokens",
            "decode_ctx_tokens",
            "prefill_attn",
            "mixed_decode_tokens",
            "mixed_decode_ctx_tokens",
        ),
        "knee",
    ),
    "table": Kind(
        (
            "const",
            "decode_tokens",
            "decode_ctx_tokens",
            "prefill_attn",
            "prefill_ctx",
            "mixed",
            "mixed_decode_tokens",
            "mixed_decode_ctx_tokens",
            "mixed_mean_decode_ctx",
        ),
        "free",
    ),
}
"""The kinds of models, the simplest first.

``memory`` is what can be told from whole runs in which every output is as long as its prompt: there
the tokens of prefill and decode, and their attention, grow together. It counts what a step reads,
which are the weights and the KV cache, and every token alike, as the one β1 of Eq. 9 does.

Eq. 9 has one β1 for all tokens. Here it is split: on an 8B model both forms are equally good (held
out, 8.8 against 8.7 %), but for the 0.6B model of SFS a decode token costs eight prefill tokens.
"""


def compile_model(
    coefficients: Mapping[str, float],
    table: tuple[Sequence[float], Sequence[float]] = ((), ()),
    ranges: Mapping[str, Sequence[float]] = {},
) -> Floats:
    """The array that :func:`step_ms` takes.

    Args:
        coefficients: by name of a term; those of other terms are 0.
        table: increasing numbers of tokens, and the ms of each that are added to the terms;
            constant before the first, going on as between the last two behind them.
        ranges: the smallest and the largest value of each of ``AXES`` among the fitted steps; one
            that is not named has no limit.
    """
    by_feature = np.zeros(len(FEATURES))
    for name, coefficient in coefficients.items():
        for feature in TERMS[name].features:
            by_feature[FEATURES.index(feature)] += coefficient
    limits = np.ravel([ranges.get(name, (-np.inf, np.inf)) for name in AXES])
    return np.concatenate([limits, by_feature, *np.asarray(table, dtype=np.float64)])


@in_place
def step_ms(
    compiled: Floats,
    prefill_tokens: float,
    decode_tokens: float,
    decode_ctx_tokens: float,
    prefill_attn: float,
) -> float:
    """Time of one step in ms.

    Args:
        compiled: the model, as ``compile_model`` makes it.
        prefill_tokens: prompt tokens computed in the step.
        decode_tokens: sequences that decode one token in it.
        decode_ctx_tokens: Σ context over the decoding sequences.
        prefill_attn: Σ n·c + n(n+1)/2 over prefill chunks of n tokens after c computed ones.
    """
    beta = compiled[_LIMITS:_COEFFICIENTS]
    total = (
        beta[0]
        + beta[1] * prefill_tokens
        + beta[2] * decode_tokens
        + beta[3] * decode_ctx_tokens
        + beta[4] * prefill_attn
    )
    if prefill_tokens > 0:
        total += beta[5] * prefill_attn / prefill_tokens
        if decode_tokens > 0:
            total += (
                beta[6]
                + beta[7] * decode_tokens
                + beta[8] * decode_ctx_tokens
                + beta[9] * decode_ctx_tokens / decode_tokens
            )
    if prefill_tokens + decode_tokens > 1:
        total += beta[10]
    n_knots = (compiled.size - _COEFFICIENTS) // 2
    if n_knots > 0:
        table = compiled[_COEFFICIENTS:]
        total += _look_up(table[:n_knots], table[n_knots:], prefill_tokens + decode_tokens)
    return total


@njit(cache=True)
def step_ms_of_each(
    compiled: Floats,
    prefill_tokens: Floats,
    decode_tokens: Floats,
    decode_ctx_tokens: Floats,
    prefill_attn: Floats,
) -> Floats:
    """:func:`step_ms` of n steps; the counts and the result have shape (n,)."""
    times = np.empty(prefill_tokens.size)
    for i in range(times.size):
        times[i] = step_ms(
            compiled, prefill_tokens[i], decode_tokens[i], decode_ctx_tokens[i], prefill_attn[i]
        )
    return times


@in_place
def extrapolates(
    compiled: Floats,
    prefill_tokens: float,
    decode_tokens: float,
    decode_ctx_tokens: float,
    prefill_attn: float,
) -> bool:
    """Whether the step lies outside the range of the fitted steps on any of ``AXES``."""
    if prefill_tokens > 0:
        context = prefill_attn / prefill_tokens
        if not (compiled[0] <= prefill_tokens <= compiled[1]):
            return True
        if not (compiled[4] <= context <= compiled[5]):
            return True
    if decode_tokens > 0:
        context = decode_ctx_tokens / decode_tokens
        if not (compiled[2] <= decode_tokens <= compiled[3]):
            return True
        if not (compiled[6] <= context <= compiled[7]):
            return True
    return False


@in_place
def _look_up(tokens: Floats, ms: Floats, n: float) -> float:
    if n <= tokens[0]:
        return ms[0]
    # The interval that n is in; the last one also serves what lies behind it.
    right = min(int(np.searchsorted(tokens, n)), tokens.size - 1)
    share = (n - tokens[right - 1]) / (tokens[right] - tokens[right - 1])
    return ms[right - 1] + share * (ms[right] - ms[right - 1])

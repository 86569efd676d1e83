"""Fitting a step-time model.

Three properties of step data decide the method (SFS §4 gives the terms, Eq. 9):

- Errors matter relative to the step: 1 ms is much of a decode step and little of a long prefill.
  So squares of *relative* errors are minimised.
- A profile consists almost only of mixed batches, a production run of decode-only ones. So the
  three regimes get equal weight, whatever their share of the steps.
- A few steps stall (garbage collection, a busy host). Dividing errors by the *measured* time bounds
  what one stall can contribute, so a first fit finds the stalls; but it favours short
  measurements, which biases the fit low, so a second fit without the stalls divides by the
  *predicted* time.

Coefficients are not negative and the token table never falls: no batch becomes faster by growing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from chimera_train.errors import DataError
from chimera_train.latency.steps import Steps
from chimera_train.latency.sums import is_summed, term_sums
from chimera_train.predict.step_terms import COUNTS, KINDS, compile_model, step_ms_of_each

__all__ = [
    "REGIMES",
    "Fit",
    "Floats",
    "axes",
    "axis_ranges",
    "check_enough",
    "fit",
    "predict",
    "regimes",
]

REGIMES = ("decode_only", "prefill_only", "mixed")

_MIN_STEPS = 30
_MIN_SHAPES = 3
# Contexts that agree to within a factor of √2 (in log2 here) are one length.
_CONTEXTS = 0.5
# A regime with fewer steps keeps a smaller weight than the others: so few say little about it.
_FULL_WEIGHT_STEPS = 20
# A step that takes more than twice its predicted time is a stall. A percentile would declare the
# same share of stalls on every engine, whether it stalls or not.
_STALL_RATIO = 2.0
# Points of a free token table: at most so many, and so many steps to each.
_MAX_POINTS = 64
_STEPS_PER_POINT = 20
# A knee is looked for among so many numbers of tokens, and then among so many between those.
_KNEES_TRIED = 12

Floats = npt.NDArray[np.float64]
Table = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and the stalls that were left out of it.

    Attributes:
        terms: coefficient by name of term, in the units of ``predict.step_terms.TERMS``.
        table: the token table as ``predict.step_terms.compile_model`` takes it.
        stall_probability: share of the steps that took more than twice their predicted time.
        stall_ms: mean time of those beyond the prediction; 0 if there are none.
    """

    terms: Mapping[str, float]
    table: Table
    stall_probability: float
    stall_ms: float


def regimes(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Index into ``REGIMES`` of every step, shape (n,)."""
    return np.select([frame["prefill_tokens"] == 0, frame["decode_tokens"] == 0], [0, 1], 2)


def check_enough(steps: Steps, *, contexts: bool = True) -> None:
    """Raise ``DataError`` unless every coefficient can be told apart and judged on held-out steps.

    That takes steps without prefill and steps with prefill, in several batch shapes each, and
    unless ``contexts`` is false, where the model has no term of them, in several contexts each.
    """
    frame = steps.frame
    n_steps = int(frame["n_steps"].sum()) if is_summed(frame) else len(frame)
    if n_steps < _MIN_STEPS:
        raise DataError(
            f"{steps.source} leaves {n_steps} steps to fit on, at least {_MIN_STEPS} are needed:"
            " profile the engine longer or restrict the steps less."
        )
    values = axes(frame)
    has_prefill = frame["prefill_tokens"] > 0
    # A row that sums up whole runs has steps of both kinds.
    decodes = ~has_prefill | (is_summed(frame) & (frame["decode_tokens"] > 0))
    for name, part, shape, context in (
        ("without", decodes, ["decode_tokens"], "mean_decode_ctx"),
        ("with", has_prefill, ["prefill_tokens", "decode_tokens"], "prefill_ctx"),
    ):
        shapes = len(
            pd.DataFrame({axis: values[axis][part].round() for axis in shape}).drop_duplicates()
        )
        if shapes < _MIN_SHAPES:
            raise DataError(
                f"{steps.source} has {shapes} batch shapes ({', '.join(shape)}) among its"
                f" steps {name} prefill, at least {_MIN_SHAPES} are needed: profile the engine"
                " over more batch sizes and prompt lengths."
            )
        if contexts and context in values and np.ptp(np.log2(values[context][part])) < _CONTEXTS:
            raise DataError(
                f"{steps.source} has 1 context length (about {values[context][part].mean():.4g}"
                f" tokens) among its steps {name} prefill, at least 2 are needed: profile the"
                " engine over more prompt lengths, or take --model tokens."
            )


def fit(kind: str, frame: pd.DataFrame) -> Fit:
    """Fit a model of ``kind`` (a key of ``KINDS``) on steps.

    ``frame`` has step_ms and the counts that the kind uses, one row a step, or sums over several
    steps for a kind that ``latency.sums.sums_exactly`` allows.

    Raises:
        DataError: the steps have fewer than three numbers of tokens, too few for a token table.
    """
    measured = frame["step_ms"].to_numpy()
    regime = regimes(frame)
    points = _table_points(kind, frame)
    X = np.column_stack([_term_columns(kind, frame), *_table_columns(frame, points)])
    first, _ = _weighted_nnls(X, measured, regime, divisor=measured)
    kept = measured <= _STALL_RATIO * (X @ first)
    # Every kept prediction is at least half its measurement, so the divisor is not 0.
    final, _ = _weighted_nnls(X[kept], measured[kept], regime[kept], divisor=X[kept] @ first)

    excess = measured - X @ final
    stalled = measured > _STALL_RATIO * (X @ final)
    names = KINDS[kind].terms
    steps_up = final[len(names) :].tolist()
    return Fit(
        terms=dict(zip(names, final[: len(names)].tolist(), strict=True)),
        table=(points, tuple(np.cumsum([0.0, *steps_up]).tolist())) if points else ((), ()),
        stall_probability=float(stalled.mean()),
        stall_ms=float(excess[stalled].mean()) if stalled.any() else 0.0,
    )


def predict(fitted: Fit, frame: pd.DataFrame) -> Floats:
    """The time of every row in ms, shape (n,)."""
    if is_summed(frame):
        return term_sums(fitted.terms, frame) @ np.array(list(fitted.terms.values()))
    return step_ms_of_each(compile_model(fitted.terms, fitted.table), *_counts(frame))


def axis_ranges(frame: pd.DataFrame) -> dict[str, list[float]]:
    """Smallest and largest value of each of ``AXES`` that was measured, where it is not nothing."""
    return {
        name: [float(values[values > 0].min()), float(values.max())]
        for name, values in axes(frame).items()
        if (values > 0).any()
    }


def axes(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Every step's value on each of ``AXES`` that was measured; 0 without tokens of the kind.

    Of a row that stands for several steps it is the mean over those with tokens of the kind.
    """
    prefill, decode = frame["prefill_tokens"], frame["decode_tokens"]
    measured = {"prefill_tokens": prefill, "decode_tokens": decode}
    if is_summed(frame):
        measured = {
            "prefill_tokens": prefill / frame["n_prefill_steps"].clip(lower=1),
            "decode_tokens": decode / frame["n_decode_steps"].clip(lower=1),
        }
    if "prefill_attn" in frame:
        measured["prefill_ctx"] = frame["prefill_attn"] / prefill.clip(lower=1)
    if "decode_ctx_tokens" in frame:
        measured["mean_decode_ctx"] = frame["decode_ctx_tokens"] / decode.clip(lower=1)
    return measured


def _table_points(kind: str, frame: pd.DataFrame) -> tuple[float, ...]:
    """The numbers of tokens that the token table is given at; none for a kind without one."""
    table = KINDS[kind].table
    if table is None:
        return ()
    totals = np.unique(frame["prefill_tokens"] + frame["decode_tokens"]).astype(float)
    if len(totals) < 3:
        raise DataError(
            f"{len(totals)} different numbers of tokens are too few for a model of kind '{kind}':"
            " at least 3 are needed."
        )
    if table == "free":
        return _spread(totals, max(3, min(_MAX_POINTS, len(frame) // _STEPS_PER_POINT)))

    # The bend is at the first point; the second only says where the slope is read off.
    measured, regime = frame["step_ms"].to_numpy(), regimes(frame)
    terms = _term_columns(kind, frame)

    def loss(knee: float) -> float:
        X = np.column_stack([terms, *_table_columns(frame, (knee, 2 * knee))])
        return _weighted_nnls(X, measured, regime, divisor=measured)[1]

    tried = _spread(totals[1:-1], _KNEES_TRIED)
    best = tried.index(min(tried, key=loss))
    low, high = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    knee = min(_spread(totals[(totals >= low) & (totals <= high)], _KNEES_TRIED), key=loss)
    return knee, 2 * knee


def _spread(values: Floats, most: int) -> tuple[float, ...]:
    """At most ``most`` of the sorted ``values``, evenly by rank, the outermost included."""
    ranks = np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int)
    return tuple(values[ranks].tolist())


def _term_columns(kind: str, frame: pd.DataFrame) -> Floats:
    """What the coefficient of each term is multiplied by, shape (n, n_terms).

    That is what the model predicts when the coefficient is 1 and all others are 0.
    """
    if is_summed(frame):
        return term_sums(KINDS[kind].terms, frame)
    counts = _counts(frame)
    models = [compile_model({name: 1.0}) for name in KINDS[kind].terms]
    return np.column_stack([step_ms_of_each(model, *counts) for model in models])


def _table_columns(frame: pd.DataFrame, points: tuple[float, ...]) -> list[Floats]:
    """Likewise for the steps of the table, by how much it rises from one point to the next."""
    counts = _counts(frame)
    columns = []
    for j in range(1, len(points)):
        rises_at_j = [float(i >= j) for i in range(len(points))]
        columns.append(step_ms_of_each(compile_model({}, (points, rises_at_j)), *counts))
    return columns


def _counts(frame: pd.DataFrame) -> list[Floats]:
    # A count that was not measured is used by no term of the kind.
    return [
        frame[name].to_numpy(dtype=np.float64) if name in frame else np.zeros(len(frame))
        for name in COUNTS
    ]


def _weighted_nnls(
    X: Floats, measured: Floats, regime: npt.NDArray[np.int64], *, divisor: Floats
) -> tuple[Floats, float]:
    """The coefficients, shape (n_coefficients,), and the norm of what they leave."""
    counts = np.bincount(regime, minlength=len(REGIMES))
    weight = 1 / np.sqrt(np.maximum(counts, _FULL_WEIGHT_STEPS)[regime]) / divisor
    weighted = X * weight[:, None]
    # Columns differ by seven orders of magnitude; nnls stops by an absolute tolerance.
    scale = np.linalg.norm(weighted, axis=0)
    scale[scale == 0] = 1.0  # no step has anything of it: its coefficient becomes 0
    coefficients, loss = nnls(weighted / scale, measured * weight)
    return coefficients / scale, float(loss)

"""Fitting a linear step-time model, and judging it on batch shapes it has not seen.

Three properties of step data decide the method (SFS §4 gives the terms, Eq. 9):

- Errors matter relative to the step: 1 ms is much of a decode step and little of a long prefill.
  So squares of *relative* errors are minimised.
- A profile consists almost only of mixed batches, a production run of decode-only ones. So the
  three regimes get equal weight, whatever their share of the steps.
- A few steps stall (garbage collection, a busy host). Dividing errors by the *measured* time bounds
  what one stall can contribute, so a first fit finds the stalls; but it favours short
  measurements, which biases the fit low, so a second fit without the stalls divides by the
  *predicted* time.

Coefficients are not negative: no batch becomes faster by growing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import nnls

from chimera_train.errors import DataError
from chimera_train.latency.steps import Steps
from chimera_train.predict.step_time import KINDS, TERMS

__all__ = [
    "N_FOLDS",
    "REGIMES",
    "Fit",
    "check_enough",
    "cross_validate",
    "errors",
    "fit",
    "regimes",
    "repeatability",
    "shape_folds",
]

REGIMES = ("decode_only", "prefill_only", "mixed")
N_FOLDS = 5

_MIN_STEPS = 30
_MIN_SHAPES = 3
# A regime with fewer steps keeps a smaller weight than the others: so few say little about it.
_FULL_WEIGHT_STEPS = 20
# A step that takes more than twice its predicted time is a stall. A percentile would declare the
# same share of stalls on every engine, whether it stalls or not.
_STALL_RATIO = 2.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and the stalls that were left out of it.

    Attributes:
        terms: coefficient by name of term, in the units of ``predict.step_time.TERMS``.
        stall_probability: share of the steps that took more than twice their predicted time.
        stall_ms: mean time of those beyond the prediction; 0 if there are none.
    """

    terms: Mapping[str, float]
    stall_probability: float
    stall_ms: float


def regimes(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Index into ``REGIMES`` of every step, shape (n,)."""
    return np.select([frame["prefill_tokens"] == 0, frame["decode_tokens"] == 0], [0, 1], 2)


def check_enough(steps: Steps) -> None:
    """Raise ``DataError`` unless every coefficient can be told apart and judged on held-out steps.

    That takes steps without prefill and steps with prefill, in several batch shapes each.
    """
    frame = steps.frame
    if len(frame) < _MIN_STEPS:
        raise DataError(
            f"{steps.source} leaves {len(frame)} steps to fit on, at least {_MIN_STEPS} are needed:"
            " profile the engine longer or restrict the steps less."
        )
    decode_only = frame["prefill_tokens"] == 0
    for name, part in (("without", frame[decode_only]), ("with", frame[~decode_only])):
        shapes = len(part[["prefill_tokens", "decode_tokens"]].drop_duplicates())
        if shapes < _MIN_SHAPES:
            raise DataError(
                f"{steps.source} has {shapes} batch shapes (prefill tokens, decode tokens) among"
                f" its steps {name} prefill, at least {_MIN_SHAPES} are needed: profile the engine"
                " over more batch sizes and prompt lengths."
            )


def fit(kind: str, frame: pd.DataFrame) -> Fit:
    """Fit a model of ``kind`` (a key of ``KINDS``) on steps.

    ``frame`` has step_ms and the features of the kind, one row a step.
    """
    X = _design(kind, frame)
    measured = frame["step_ms"].to_numpy()
    regime = regimes(frame)

    first = _weighted_nnls(X, measured, regime, divisor=measured)
    kept = measured <= _STALL_RATIO * (X @ first)
    # Every kept prediction is at least half its measurement, so the divisor is not 0.
    final = _weighted_nnls(X[kept], measured[kept], regime[kept], divisor=X[kept] @ first)

    excess = measured - X @ final
    stalled = measured > _STALL_RATIO * (X @ final)
    return Fit(
        terms=dict(zip(KINDS[kind], final.tolist(), strict=True)),
        stall_probability=float(stalled.mean()),
        stall_ms=float(excess[stalled].mean()) if stalled.any() else 0.0,
    )


def cross_validate(kind: str, frame: pd.DataFrame) -> Floats:
    """Held-out predictions of every step in ms, shape (n,), by the folds of ``shape_folds``."""
    folds = shape_folds(frame)
    X = _design(kind, frame)
    predicted = np.empty(len(frame))
    for fold in range(N_FOLDS):
        held_out = folds == fold
        if held_out.any():
            fitted = fit(kind, frame[~held_out])
            predicted[held_out] = X[held_out] @ np.array(list(fitted.terms.values()))
    return predicted


def shape_folds(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The fold of every step, shape (n,): steps of one batch shape are always in the same.

    The shape of a batch is its pair (prefill tokens, decode tokens). An engine repeats a shape in
    hundreds of steps that differ by one token of context each, so a split by step would test on
    the training data. Within each regime the shapes, sorted, are dealt to the folds in turn:
    every fold holds small and large batches of every regime.
    """
    shapes, shape = np.unique(
        frame[["prefill_tokens", "decode_tokens"]].to_numpy(), axis=0, return_inverse=True
    )
    regime = regimes(pd.DataFrame(shapes, columns=["prefill_tokens", "decode_tokens"]))
    fold = np.empty(len(shapes), dtype=np.int64)
    for index in range(len(REGIMES)):
        members = np.flatnonzero(regime == index)
        fold[members] = np.arange(len(members)) % N_FOLDS
    return fold[shape.ravel()]


def errors(predicted: Floats, frame: pd.DataFrame) -> dict[str, Any]:
    """Percentage errors of predictions.

    Returns:
        ``mape`` (overall and per regime; None for a regime without steps), ``bias`` (mean signed
        error, above 0 where steps are predicted too long) and ``p90`` of the absolute error. All
        steps count, stalls too.
    """
    measured = frame["step_ms"].to_numpy()
    signed = 100 * (predicted - measured) / measured
    absolute = np.abs(signed)
    regime = regimes(frame)
    mape: dict[str, float | None] = {"overall": float(absolute.mean())}
    for index, name in enumerate(REGIMES):
        mine = regime == index
        mape[name] = float(absolute[mine].mean()) if mine.any() else None
    return {
        "mape": mape,
        "bias": float(signed.mean()),
        "p90": float(np.quantile(absolute, 0.9)),
    }


def repeatability(frame: pd.DataFrame) -> dict[str, Any] | None:
    """``errors`` of predicting a step by the median of the other steps of the same batch.

    What they leave is the variation of the engine and the machine, which no model of the batch
    explains. Two batches are the same here if their tokens are equal and their sums over contexts
    within about 10 %.

    Returns:
        The errors, and ``share`` of the steps whose batch was seen again; None if none was.
    """
    sums = [name for name in ("decode_ctx_tokens", "prefill_attn") if name in frame]
    alike = frame[["prefill_tokens", "decode_tokens"]].join(
        (np.log1p(frame[sums]) / np.log(1.1)).round()
    )
    groups = frame.groupby([alike[name] for name in alike])["step_ms"]
    predicted = groups.transform(_median_of_others)
    seen_again = predicted.notna()
    if not seen_again.any():
        return None
    judged = errors(predicted[seen_again].to_numpy(), frame[seen_again])
    return {"share": float(seen_again.mean()), **judged}


def _median_of_others(times: pd.Series) -> Floats:
    """Of each value the median of all others, shape (n,); NaN if there is no other."""
    n = len(times)
    if n == 1:
        return np.array([np.nan])
    rank = np.argsort(np.argsort(times.to_numpy(), kind="stable"))
    ordered = np.sort(times.to_numpy())
    # Without the value of rank r, the k-th of the others is k, or k + 1 from r on.
    middle = [ordered[k + (rank <= k)] for k in ((n - 2) // 2, (n - 1) // 2)]
    return np.mean(middle, axis=0)


def _design(kind: str, frame: pd.DataFrame) -> Floats:
    """Values of the kind's terms, shape (n, n_terms)."""
    values = frame.assign(const=1.0)
    columns = [values[list(TERMS[name].features)].sum(axis=1) for name in KINDS[kind]]
    return np.column_stack(columns)


def _weighted_nnls(
    X: Floats, measured: Floats, regime: npt.NDArray[np.int64], *, divisor: Floats
) -> Floats:
    counts = np.bincount(regime, minlength=len(REGIMES))
    weight = 1 / np.sqrt(np.maximum(counts, _FULL_WEIGHT_STEPS)[regime]) / divisor
    weighted = X * weight[:, None]
    # Columns differ by seven orders of magnitude; nnls stops by an absolute tolerance.
    scale = np.linalg.norm(weighted, axis=0)
    coefficients, _ = nnls(weighted / scale, measured * weight)
    return coefficients / scale

"""How good a step-time model is: errors on steps that it was not fitted on, and what is possible.

Two kinds of steps are held out in turn, a fifth at a time. Steps of *contexts* not seen show
whether the attention terms hold in between, steps of batch *shapes* not seen whether the token
terms do. A split by single steps would test on the training data: an engine repeats a batch in
hundreds of steps that differ by one token of context each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.latency.fit import REGIMES, Floats, axes, fit, predict, regimes

__all__ = [
    "N_FOLDS",
    "context_folds",
    "cross_validate",
    "errors",
    "repeatability",
    "shape_folds",
]

N_FOLDS = 5


def cross_validate(kind: str, frame: pd.DataFrame, folds: npt.NDArray[np.int64]) -> Floats:
    """Held-out predictions of every step in ms, shape (n,); ``folds`` has each step's fold."""
    predicted = np.empty(len(frame))
    for fold in np.unique(folds):
        held_out = folds == fold
        predicted[held_out] = predict(fit(kind, frame[~held_out]), frame[held_out])
    return predicted


def context_folds(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The fold of every step, shape (n,): steps of like contexts are always in the same.

    A step has two contexts, of its prefill tokens and of its decoding sequences, each the mean over
    the tokens; they are alike when they agree to within a factor of about √2. A regime with too few
    contexts to hold any out, or none measured, is divided by batch shape instead.
    """
    contexts_of = axes(frame)
    cells = pd.DataFrame({"prefill": 0.0, "decode": 0.0}, index=frame.index)
    if "prefill_ctx" in contexts_of:
        # A prefill token attends to the tokens before the chunk and half of the chunk.
        before = contexts_of["prefill_ctx"] - (frame["prefill_tokens"] + 1) / 2
        cells["prefill"] = np.log2(1 + before.clip(lower=0)).round()
    if "mean_decode_ctx" in contexts_of:
        cells["decode"] = np.log2(1 + contexts_of["mean_decode_ctx"]).round()
    regime = regimes(frame)
    contexts = pd.Series(cells.groupby([regime, *(cells[name] for name in cells)]).ngroup())
    too_few = contexts.groupby(regime).transform("nunique") < N_FOLDS
    for name in ("prefill_tokens", "decode_tokens"):
        cells[name] = frame[name].where(too_few.to_numpy(), 0)
    return _deal(frame, cells)


def shape_folds(frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """The fold of every step, shape (n,): steps of one batch shape are always in the same.

    The shape of a batch is its pair (prefill tokens, decode tokens), of a row that stands for
    several steps the means over those with such tokens.
    """
    values = axes(frame)
    shape = {name: values[name].round() for name in ("prefill_tokens", "decode_tokens")}
    return _deal(frame, pd.DataFrame(shape))


def _deal(frame: pd.DataFrame, cells: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Deal the distinct rows of ``cells``, sorted, to the folds in turn, regime by regime.

    Every fold then holds small and large ones of every regime.
    """
    keyed = cells.assign(regime=regimes(frame))
    groups = keyed.drop_duplicates().sort_values(["regime", *cells.columns])
    groups["fold"] = groups.groupby("regime").cumcount() % N_FOLDS
    return keyed.merge(groups, how="left")["fold"].to_numpy()


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
    sums = [name for name in ("decode_ctx_tokens", "prefill_attn", "n_steps") if name in frame]
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

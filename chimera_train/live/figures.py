"""What was predicted beside what happened, in rows of a decision log."""

from typing import Any

import numpy as np
import pandas as pd

from chimera_train.length.judge import breakdown, prediction_figures
from chimera_train.router.metrics import average_precision, calibration_error, reliability

__all__ = ["length_figures", "length_rows", "outcome_figures", "outcome_rows", "service_figures"]


def length_rows(log: pd.DataFrame) -> pd.DataFrame:
    """The requests of programs that completed, in order, as ``length.judge`` takes rows.

    ``target_tokens`` is the realised remaining length: the tokens of the request and of the later
    ones of its program. A program with a failed request, or one whose tokens are not known, is left
    out, for its length is not known either. Predictions of different bundles are not compared with
    each other, so a bundle is a fold.
    """
    complete = (log["error"].isna() & log["realised_tokens"].notna()).groupby(log["program_id"])
    rows = log[complete.transform("all")].sort_values(["program_id", "time"], kind="stable")
    output = rows["realised_tokens"].astype("int64")
    by_program = output.groupby(rows["program_id"])
    return pd.DataFrame(
        {
            "program_id": rows["program_id"],
            "workflow": _named(rows["workflow"]),
            "stage": _named(rows["stage"]),
            "model": _named(rows["model"]),
            "prompt_tokens": rows["prompt_tokens"],
            "output_tokens": output,
            "target_tokens": by_program.transform("sum") - by_program.cumsum() + output,
            "predicted": rows["predicted_tokens"],
            "0.1": rows["predicted_low_tokens"],
            "0.5": rows["predicted_tokens"],
            "0.9": rows["predicted_high_tokens"],
            "fold": pd.factorize(rows["bundle"], sort=True)[0].astype("int64"),
        }
    ).reset_index(drop=True)


def length_figures(rows: pd.DataFrame, seed: int) -> dict[str, Any] | None:
    """The figures of ``length_rows``; None if no length was predicted.

    - ``requests``, ``programs``: with a predicted length.
    - ``kendall_distance`` and, where the log has the quantiles, ``coverage``, ``interval_coverage``
      and the rest: as in ``fit length``.
    - ``bias``: predicted tokens, summed, above the realised ones, percent; of all requests and by
      model, stage and workflow. Medians add up to less than skewed lengths do.
    """
    rows = rows[rows["predicted"].notna()]
    if rows.empty:
        return None
    if rows[["0.1", "0.9"]].isna().any(axis=None):
        rows = rows.drop(columns=["0.1", "0.5", "0.9"])
    return {
        "requests": len(rows),
        "programs": int(rows["program_id"].nunique()),
        **prediction_figures(rows, seed),
        "bias": breakdown(rows, _bias),
    }


def service_figures(log: pd.DataFrame) -> dict[str, Any]:
    """What the requests of a log met with; what is not known is None.

    - ``ttft``: of predicted against measured times, ``mape``, ``bias`` (the mean) and ``p90`` of
      the absolute error, percent, and the number of ``requests``.
    - ``queue_ms``: ``mean``, ``p50``, ``p95`` and ``p99``.
    - ``overhead_share``: reading, predicting and deciding, as a share of the latency of programs,
      first arrival to last end.
    - ``fallback_share``: of requests that lost an engine.
    - ``errors``: requests by error; ``cancelled`` of them were cancelled by clients or on shutdown,
      and do not count in ``error_share``.
    """
    failed = log["error"].notna()
    cancelled = log["error"].str.startswith("cancelled", na=False)
    start_ms = (log["time"] - log["time"].min()).dt.total_seconds() * 1000
    end_ms = (start_ms + log["e2e_ms"]).groupby(log["program_id"]).max()
    latency_ms = float((end_ms - start_ms.groupby(log["program_id"]).min()).sum())
    queue_ms = log["queue_ms"].dropna()
    return {
        "ttft": _ttft_figures(log[~failed]),
        "queue_ms": None
        if queue_ms.empty
        else {
            "mean": float(queue_ms.mean()),
            **{f"p{p}": float(np.percentile(queue_ms, p)) for p in (50, 95, 99)},
        },
        "overhead_share": float(log["overhead_ms"].sum()) / latency_ms if latency_ms > 0 else None,
        "fallback_share": float((log["fallbacks"] > 0).mean()),
        "error_share": float((failed & ~cancelled).mean()),
        "cancelled": int(cancelled.sum()),
        "errors": {str(k): int(n) for k, n in log["error"].value_counts().head(10).items()},
    }


def outcome_rows(log: pd.DataFrame, scores: pd.Series) -> pd.DataFrame:
    """Programs with an outcome, one row each: ``model``, ``confidence`` and ``score``.

    ``scores`` is by program_id. The outcome is that of the model which answered, so programs that
    more than one model worked on are left out, as are those that the router was not asked about.
    """
    known = log[log["program_id"].isin(scores.index) & log["engine"].notna() & log["q"].notna()]
    models = known.groupby("program_id")["model"].transform("nunique")
    first = known[models == 1].drop_duplicates("program_id")
    confidence = [
        dict(q).get(engine) for q, engine in zip(first["q"], first["engine"], strict=True)
    ]
    return pd.DataFrame(
        {
            "model": first["model"],
            "confidence": pd.Series(confidence, first.index, dtype="float64"),
            "score": first["program_id"].map(scores).astype("float64"),
        }
    ).dropna()


def outcome_figures(rows: pd.DataFrame) -> dict[str, Any] | None:
    """The router's figures on ``outcome_rows``; None without any.

    ``ece`` over all models and ``ece_per_model``; ``reliability``, the bins by model; ``ap`` by
    model, None where all outcomes are equal; ``base_rate``, ``mean_confidence`` and ``programs`` by
    model. A model is judged on the programs that it was given, and not on those that the router
    kept from it.
    """
    if rows.empty:
        return None
    by_model = {str(model): group for model, group in rows.groupby("model")}
    bins = {
        model: reliability(group["score"].to_numpy(), group["confidence"].to_numpy())
        for model, group in by_model.items()
    }
    ap = {}
    for model, group in by_model.items():
        value = float(average_precision(*_columns(group))[0])
        ap[model] = None if np.isnan(value) else value
    return {
        "programs": {model: len(group) for model, group in by_model.items()},
        "ece": calibration_error(*_columns(rows)),
        "ece_per_model": {model: of_model.error for model, of_model in bins.items()},
        "reliability": {
            model: {
                "confidence": of_model.confidence.tolist(),
                "success": of_model.success.tolist(),
            }
            for model, of_model in bins.items()
        },
        "ap": ap,
        "base_rate": {m: float(group["score"].mean()) for m, group in by_model.items()},
        "mean_confidence": {m: float(group["confidence"].mean()) for m, group in by_model.items()},
    }


def _ttft_figures(log: pd.DataFrame) -> dict[str, Any] | None:
    known = log[log["predicted_ttft_ms"].notna() & (log["ttft_ms"] > 0)]
    if known.empty:
        return None
    error = (known["predicted_ttft_ms"] / known["ttft_ms"] - 1) * 100
    return {
        "requests": len(known),
        "mape": float(error.abs().mean()),
        "bias": float(error.mean()),
        "p90": float(error.abs().quantile(0.9)),
    }


def _bias(rows: pd.DataFrame) -> float | None:
    realised = float(rows["target_tokens"].sum())
    return 100 * (float(rows["predicted"].sum()) / realised - 1) if realised else None


def _columns(rows: pd.DataFrame) -> tuple[Any, Any]:
    """Scores and confidences as the router's metrics take them, of one column."""
    return rows[["score"]].to_numpy(np.float64), rows[["confidence"]].to_numpy(np.float64)


def _named(values: pd.Series) -> pd.Series:
    """Requests that do not say are a group of their own."""
    return values.fillna("").replace("", "(none)").astype(str)

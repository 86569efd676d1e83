"""From measured steps to a coefficient file: the fit, its quality, and Chimera's load constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, read_json_object, sha256
from chimera_train.latency.fit import REGIMES, Fit, Floats, axis_ranges, check_enough, fit
from chimera_train.latency.judge import (
    context_folds,
    cross_validate,
    errors,
    repeatability,
    shape_folds,
)
from chimera_train.latency.load_constants import (
    load_constants,
    mean_context_of_steps,
    mean_context_of_traces,
)
from chimera_train.latency.steps import Steps
from chimera_train.latency.sums import is_summed, sums_exactly, tells_apart
from chimera_train.pool.schema import EngineInfo
from chimera_train.pool.sharing import Sharing
from chimera_train.predict.step_terms import KINDS, TERMS, compile_model
from chimera_train.predict.step_time import SCHEMA

__all__ = [
    "Calibration",
    "calibrate",
    "read_engine",
]

# A model is preferred to a simpler one if its held-out errors are smaller by more than this share.
_WORTHWHILE = 0.02
# Numbers of tokens that leave enough for a token table when a fifth is held out.
_MIN_TOTALS = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated model.

    Attributes:
        document: the content of the coefficient file.
        predicted_ms: prediction of every step by a model that saw no step of its contexts, shape
            (n,).
    """

    document: Mapping[str, Any]
    predicted_ms: Floats


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What a kind of model predicts of every step, held out in both ways."""

    unseen_contexts: Floats
    unseen_shapes: Floats

    def judge(self, frame: pd.DataFrame) -> dict[str, Any]:
        return {
            **errors(self.unseen_contexts, frame),
            "unseen_shapes": errors(self.unseen_shapes, frame),
        }


def calibrate(
    steps: Steps,
    *,
    kind: str | None,
    engine: EngineInfo | None,
    traces: Path | None = None,
    sharing: Sharing | None = None,
) -> Calibration:
    """Fit a step-time model on ``steps``, and judge it beside every other kind.

    Args:
        steps: what the engine did.
        kind: a key of ``predict.step_terms.KINDS``; None chooses the simplest whose held-out MAPE,
            as a mean over regimes and both ways of holding out, is within 2 % of the best.
        engine: the engine's configuration. Without it the figures are still measured, but the
            load constants are null and the file cannot be used for an engine.
        traces: collected traces that say how long contexts are; None takes the decode steps' own.
        sharing: how the engine shares its device with others, which the file is to keep.

    Raises:
        ConfigError: unknown kind, traces or a sharing curve without an engine to look for in them,
            or a sharing curve that was measured without the engine's model.
        DataError: a column that the kind needs was not measured, rows stand for several steps and
            the kind needs single ones, there are too few steps, batch shapes or contexts, a request
            is longer than the engine's KV cache, or the mean context is unknown.
    """
    if kind is not None:
        _require_possible(kind, steps)
    if traces is not None and engine is None:
        raise ConfigError(
            "Traces can only be used for a known engine: give its engine.json with --engine."
        )
    if sharing is not None:
        _require_measured(sharing, engine)
    check_enough(steps, contexts=kind != "tokens")
    if engine is not None:
        _require_fitting_cache(steps, engine)

    frame = steps.frame
    folds = context_folds(frame), shape_folds(frame)
    candidates = {
        name: _Candidate(*(cross_validate(name, frame, held_out) for held_out in folds))
        for name in KINDS
        if name == kind or _is_possible(name, frame)
    }
    judged = {name: candidate.judge(frame) for name, candidate in candidates.items()}
    kind = kind or _simplest_good(judged)
    fitted = fit(kind, frame)
    document = {
        "schema": SCHEMA,
        "kind": kind,
        **_model(fitted),
        "source": _source(steps.source),
        "fitted_on": _fitted_on(steps),
        **judged.pop(kind),
        "baselines": judged,
        "repeatability": repeatability(frame),
        "stalls": {"probability": fitted.stall_probability, "mean_ms": fitted.stall_ms},
        "overhead_ms": 0.0,
        **_of_engine(steps, fitted, engine, traces),
        "device_group": None if sharing is None else sharing.device_group,
        "sharing_curve": None if sharing is None else list(sharing.slowdown),
    }
    return Calibration(document, candidates[kind].unseen_contexts)


def _model(fitted: Fit) -> dict[str, Any]:
    terms = [
        {"name": name, "unit": TERMS[name].unit, "coefficient": coefficient, "origin": "fitted"}
        for name, coefficient in fitted.terms.items()
    ]
    tokens, ms = fitted.table
    return {
        "terms": terms,
        "table": {"tokens": list(tokens), "ms": list(ms)} if tokens else None,
    }


def _fitted_on(steps: Steps) -> dict[str, Any]:
    frame = steps.frame
    return {
        "steps": int(frame["n_steps"].sum()) if is_summed(frame) else len(frame),
        "rows": len(frame),
        "origins": dict(steps.origins),
        "source": str(steps.source),
        "sha256": sha256(steps.source),
        "ranges": axis_ranges(frame),
    }


def _of_engine(
    steps: Steps, fitted: Fit, engine: EngineInfo | None, traces: Path | None
) -> dict[str, Any]:
    """The engine and the load constants; null of an engine that is not known."""
    if engine is None:
        keys = (
            "engine", "device", "mean_context_tokens", "mean_context_source", "max_batch_size",
            "decode_ms_per_token",
        )  # fmt: skip
        return dict.fromkeys(keys)
    if traces is None:
        context = mean_context_of_steps(steps)
    else:
        context = mean_context_of_traces(traces, engine.model)
    max_batch_size, decode_ms_per_token = load_constants(
        compile_model(fitted.terms, fitted.table), engine, context
    )
    return {
        "engine": engine.model_dump(),
        "device": engine.device,
        "mean_context_tokens": context,
        "mean_context_source": "decode steps" if traces is None else "traces",
        "max_batch_size": max_batch_size,
        "decode_ms_per_token": decode_ms_per_token,
    }


def _source(steps: Path) -> str | None:
    """How steps were measured, as the provenance beside them says; None where nothing does."""
    provenance = steps.with_name("provenance.json")
    return read_json_object(provenance).get("source") if provenance.is_file() else None


def _is_possible(kind: str, frame: pd.DataFrame) -> bool:
    """Whether the steps have what ``kind`` needs, whichever fold is held out."""
    if not set(KINDS[kind].needs) <= set(frame):
        return False
    if is_summed(frame):
        # Costs of prefill and of decode that nothing tells apart would be shared out at random.
        has_both = "prefill_tokens" in KINDS[kind].terms
        return sums_exactly(kind) and (tells_apart(frame) or not has_both)
    totals = (frame["prefill_tokens"] + frame["decode_tokens"]).nunique()
    return KINDS[kind].table is None or totals >= _MIN_TOTALS


def _simplest_good(judged: Mapping[str, Mapping[str, Any]]) -> str:
    def score(errors: Mapping[str, Any]) -> float:
        mapes = [
            held_out["mape"][regime]
            for held_out in (errors, errors["unseen_shapes"])
            for regime in REGIMES
        ]
        return float(np.mean([mape for mape in mapes if mape is not None]))

    scores = {kind: score(errors) for kind, errors in judged.items()}
    good = min(scores.values()) * (1 + _WORTHWHILE)
    return next(kind for kind in KINDS if kind in scores and scores[kind] <= good)


def read_engine(path: Path) -> EngineInfo:
    """Read an ``engine.json``.

    Raises:
        DataError: the file is missing or not JSON.
        ConfigError: a field is missing, unknown or of a wrong type.
    """
    return parse_settings(read_json(path), EngineInfo, str(path))


def _require_possible(kind: str, steps: Steps) -> None:
    if kind not in KINDS:
        raise ConfigError(f"Unknown step-time model '{kind}': use auto, {', '.join(KINDS)}.")
    steps.require(KINDS[kind].needs, f"the model '{kind}'")
    if is_summed(steps.frame) and not sums_exactly(kind):
        possible = ", ".join(name for name in KINDS if sums_exactly(name))
        raise DataError(
            f"{steps.source} has rows that stand for several steps, but the model '{kind}'"
            f" needs single ones: use auto, {possible}."
        )


def _require_fitting_cache(steps: Steps, engine: EngineInfo) -> None:
    """Raise ``DataError`` if a sequence is longer than the KV cache of ``engine``."""
    names = [name for name in ("max_prefill_ctx", "max_decode_ctx") if name in steps.frame]
    longest = max((float(steps.frame[name].max()) for name in names), default=0.0)
    limit = engine.num_kv_blocks * engine.block_size
    if longest > limit:
        raise DataError(
            f"{steps.source} has a request of {longest:.0f} tokens, longer than the {limit} of the"
            " engine's KV cache: give the engine.json of the engine that was measured."
        )


def _require_measured(sharing: Sharing, engine: EngineInfo | None) -> None:
    if engine is None:
        raise ConfigError(
            "A sharing curve can only be kept for a known engine: give its engine.json with"
            " --engine."
        )
    # Engines of one model are alike; what each is called is the pool file's to say.
    if engine.model not in sharing.engines.values():
        measured = ", ".join(f"{name} ({model})" for name, model in sharing.engines.items())
        raise ConfigError(
            f"The sharing curve of '{sharing.device_group}' was measured with {measured}, none of"
            f" which serves '{engine.model}': measure its own device group."
        )

"""From measured steps to a coefficient file: the fit, its quality, and Chimera's load constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, sha256
from chimera_train.latency.fit import (
    Floats,
    check_enough,
    cross_validate,
    errors,
    fit,
    repeatability,
)
from chimera_train.latency.steps import Steps
from chimera_train.pool.schema import EngineInfo
from chimera_train.pool.sharing import Sharing
from chimera_train.predict.step_time import FEATURES, KINDS, SCHEMA, TERMS, coefficient_vector
from chimera_train.traces.store import load_traces

__all__ = [
    "Calibration",
    "calibrate",
    "load_constants",
    "mean_context_of_steps",
    "mean_context_of_traces",
    "read_engine",
]

_BASELINE = "tokens"


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibrated model.

    Attributes:
        document: the content of the coefficient file.
        predicted_ms: held-out prediction of every step, shape (n,).
    """

    document: Mapping[str, Any]
    predicted_ms: Floats


def calibrate(
    steps: Steps,
    *,
    kind: str,
    engine: EngineInfo | None,
    traces: Path | None = None,
    sharing: Sharing | None = None,
) -> Calibration:
    """Fit a model of ``kind`` on ``steps`` and judge it and the tokens-only baseline.

    Args:
        steps: what the engine did.
        kind: a key of ``predict.step_time.KINDS``.
        engine: the engine's configuration. Without it the figures are still measured, but the
            load constants are null and the file cannot be used for an engine.
        traces: collected traces that say how long contexts are; None takes the decode steps' own.
        sharing: how the engine shares its device with others, which the file is to keep.

    Raises:
        ConfigError: unknown kind, traces or a sharing curve without an engine to look for in them,
            or a sharing curve that was measured without the engine's model.
        DataError: a column that the kind needs was not measured, there are too few steps or batch
            shapes, or the mean context is unknown.
    """
    if kind not in KINDS:
        raise ConfigError(f"Unknown step-time model '{kind}': use {' or '.join(KINDS)}.")
    if traces is not None and engine is None:
        raise ConfigError(
            "Traces can only be used for a known engine: give its engine.json with --engine."
        )
    if sharing is not None:
        _require_measured(sharing, engine)
    features = [name for name in FEATURES if name in _features(kind)]
    steps.require(features, f"the model '{kind}'")
    check_enough(steps)

    fitted = fit(kind, steps.frame)
    predicted = cross_validate(kind, steps.frame)
    baseline = cross_validate(_BASELINE, steps.frame)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": kind,
        "terms": [
            {"name": name, "unit": TERMS[name].unit, "coefficient": coefficient}
            for name, coefficient in fitted.terms.items()
        ],
        "engine": None,
        "device": None,
        "fitted_on": {
            "steps": len(steps.frame),
            "source": str(steps.source),
            "sha256": sha256(steps.source),
            "ranges": {
                name: [float(steps.frame[name].min()), float(steps.frame[name].max())]
                for name in features
            },
        },
        **errors(predicted, steps.frame),
        "baselines": {_BASELINE: errors(baseline, steps.frame)},
        "repeatability": repeatability(steps.frame),
        "stalls": {"probability": fitted.stall_probability, "mean_ms": fitted.stall_ms},
        "overhead_ms": 0.0,
        "mean_context_tokens": None,
        "mean_context_source": None,
        "max_batch_size": None,
        "decode_ms_per_token": None,
        "device_group": None if sharing is None else sharing.device_group,
        "sharing_curve": None if sharing is None else list(sharing.slowdown),
    }
    if engine is not None:
        if traces is None:
            context = mean_context_of_steps(steps)
        else:
            context = mean_context_of_traces(traces, engine.model)
        max_batch_size, decode_ms_per_token = load_constants(fitted.terms, engine, context)
        document |= {
            "engine": engine.model_dump(),
            "device": engine.device,
            "mean_context_tokens": context,
            "mean_context_source": "decode steps" if traces is None else "traces",
            "max_batch_size": max_batch_size,
            "decode_ms_per_token": decode_ms_per_token,
        }
    return Calibration(document, predicted)


def load_constants(
    terms: Mapping[str, float], engine: EngineInfo, mean_context_tokens: float
) -> tuple[int, float]:
    """Chimera's constants of an engine (§3.5): ``max_batch_size`` and ``decode_ms_per_token``.

    The first is the number of sequences of mean context that the KV cache holds, at most
    max_num_seqs and at least 1; the second the time of a decode-only step of that many. Every
    sequence gains one token in such a step, so it is the time per token and sequence.
    """
    kv_tokens = engine.num_kv_blocks * engine.block_size
    batch = max(1, min(engine.max_num_seqs, int(kv_tokens // mean_context_tokens)))
    const, _, decode, context, _ = coefficient_vector(terms)
    return batch, float(const + batch * (decode + context * mean_context_tokens))


def mean_context_of_traces(directory: Path, model: str) -> float:
    """Mean context in tokens over the stages that ``model`` ran: the prompt and half the output.

    Raises:
        DataError: the traces are unreadable or ``model`` ran nothing in them.
    """
    traces = load_traces(directory)
    mine = traces.programs.loc[traces.programs["model"] == model, "program_id"]
    stages = traces.stages[traces.stages["program_id"].isin(mine) & traces.stages["error"].isna()]
    if stages.empty:
        models = ", ".join(sorted(traces.programs["model"].unique()))
        raise DataError(
            f"{directory} has no stage of the engine's model '{model}', only of {models}."
        )
    return float((stages["prompt_tokens"] + stages["output_tokens"] / 2).mean())


def mean_context_of_steps(steps: Steps) -> float:
    """Mean context in tokens of a sequence in a decode step."""
    steps.require(["decode_ctx_tokens"], "the mean context (or --traces)")
    return float(steps.frame["decode_ctx_tokens"].sum() / steps.frame["decode_tokens"].sum())


def read_engine(path: Path) -> EngineInfo:
    """Read an ``engine.json``.

    Raises:
        DataError: the file is missing or not JSON.
        ConfigError: a field is missing, unknown or of a wrong type.
    """
    return parse_settings(read_json(path), EngineInfo, str(path))


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


def _features(kind: str) -> set[str]:
    """The measured columns that the terms of a kind are made of."""
    return {feature for name in KINDS[kind] for feature in TERMS[name].features} - {"const"}

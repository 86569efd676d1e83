"""From traces to a router that can be deployed: split, train, export, calibrate, judge.

What is judged is the exported ONNX file behind its calibration, that is, what will run; the
holdout questions are seen by nothing before.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.errors import ConfigError
from chimera_train.files import replaced_directory, sha256, write_json
from chimera_train.output import Output
from chimera_train.predict.fitted import FITTED, save_fitted
from chimera_train.predict.router import (
    MANIFEST,
    NETWORKS,
    SCHEMA_VERSION,
    TOKENIZER,
    OnnxRouter,
)
from chimera_train.pretrained import quiet_transformers
from chimera_train.router.baselines import baseline_scores
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.export import export_router
from chimera_train.router.judge import judge
from chimera_train.router.labels import Split, router_data, split
from chimera_train.router.metrics import macro_map
from chimera_train.router.settings import RouterSettings
from chimera_train.router.train import Trained, train
from chimera_train.traces.split import fingerprints
from chimera_train.traces.store import load_traces

__all__ = ["CHECKPOINT", "METRICS", "fit_router"]

METRICS = "metrics.json"
CHECKPOINT = "checkpoint"


def fit_router(
    traces_dir: Path, out_dir: Path, settings: RouterSettings, output: Output
) -> dict[str, Any]:
    """Fit a router on collected traces and write it to ``out_dir``; return its metrics.

    ``out_dir`` gets ``router.json`` (models, calibration, digests), ``model.onnx``,
    ``model.int8.onnx``, ``tokenizer.json``, ``metrics.json`` and ``checkpoint/`` (safetensors, for
    further training). It appears whole or not at all, and replaces an earlier router. Training
    that was killed is resumed by the same call.

    The metrics are those of ``judge`` on the holdout questions and of ``labels.Split.figures``,
    and what 8 bits change (``int8``).

    Raises:
        ConfigError: the encoder cannot be used, or ``out_dir`` holds something else.
        DataError: the traces cannot be used, or hold too few graded questions.
        ChimeraError: the trained network cannot be exported.
    """
    _refuse_foreign(out_dir)
    parts = split(router_data(load_traces(traces_dir)))
    work = out_dir.parent / f".{out_dir.name}.work"
    with quiet_transformers():
        trained = train(parts.training, parts.validation, settings, work, output)
        with replaced_directory(out_dir) as staging:
            output.info("Exporting and judging the router.")
            metrics = _write(staging, parts, trained, settings)
    shutil.rmtree(work)
    return metrics


def _write(
    directory: Path, parts: Split, trained: Trained, settings: RouterSettings
) -> dict[str, Any]:
    export_router(trained.model, trained.tokenizer, directory, max_length=settings.max_length)
    models, n = parts.training.models, len(parts.training.models)

    def network(precision: str, scale: npt.ArrayLike, bias: npt.ArrayLike) -> OnnxRouter:
        return OnnxRouter(
            directory / NETWORKS[precision],
            directory / TOKENIZER,
            models,
            max_length=settings.max_length,
            scale=scale,
            bias=bias,
        )

    raw = network(settings.precision, np.ones(n), np.zeros(n))
    validation = parts.validation
    labels = fit_calibration(
        models, validation.success, raw.logits(validation.texts), validation.weights
    ).labels
    scale, bias = zip(*((label.scale, label.bias) for label in labels), strict=True)
    routers = {precision: network(precision, scale, bias) for precision in NETWORKS}
    probabilities = {name: router.predict(parts.holdout.texts) for name, router in routers.items()}

    chosen = probabilities[settings.precision]
    metrics = parts.figures() | judge(
        parts.training,
        parts.holdout,
        {"encoder": chosen, **baseline_scores(parts.training, parts.holdout.texts)},
        "encoder",
        raw.predict(parts.holdout.texts),
        seed=settings.seed,
    )
    metrics["int8"] = {
        "map_macro": macro_map(parts.holdout.success, probabilities["int8"]),
        "largest_difference": float(np.abs(probabilities["int8"] - probabilities["fp32"]).max()),
    }
    metrics["epochs"] = {"trained": trained.epochs, "best": trained.best_epoch}

    trained.model.save_pretrained(directory / CHECKPOINT)
    trained.tokenizer.save_pretrained(directory / CHECKPOINT)
    fitted = [*parts.training.question_ids, *parts.validation.question_ids]
    save_fitted(directory, fingerprints(pd.Series(fitted)))
    write_json(directory / METRICS, metrics)
    write_json(
        directory / MANIFEST,
        {
            "schema_version": SCHEMA_VERSION,
            "labels": [
                {"model": model, "scale": float(a), "bias": float(b)}
                for model, a, b in zip(models, scale, bias, strict=True)
            ],
            "encoder": settings.encoder,
            "max_length": settings.max_length,
            "precision": settings.precision,
            "sha256": {name: sha256(directory / name) for name in (*NETWORKS.values(), TOKENIZER)},
            "metrics": metrics,
        },
    )
    return metrics


def _refuse_foreign(out_dir: Path) -> None:
    """Refuse to replace anything but an earlier router."""
    ours = {MANIFEST, *NETWORKS.values(), TOKENIZER, METRICS, CHECKPOINT, FITTED}
    if out_dir.is_dir():
        foreign = sorted(path.name for path in out_dir.iterdir() if path.name not in ours)
        if foreign:
            raise ConfigError(
                f"{out_dir} holds '{foreign[0]}', which is not part of a router: choose another"
                " --out, or empty it."
            )
    elif out_dir.exists():
        raise ConfigError(f"{out_dir} is a file: choose a directory for --out.")

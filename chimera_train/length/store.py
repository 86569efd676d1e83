"""Writing a length directory whole: staged beside its place, then renamed into it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json_object, replaced_directory, sha256, write_json
from chimera_train.length.card import length_card
from chimera_train.length.estimators import FittedLength
from chimera_train.length.judge import QUANTILES
from chimera_train.length.settings import LengthSettings
from chimera_train.predict.features import FEATURES_VERSION, Sketch
from chimera_train.predict.fitted import save_fitted
from chimera_train.predict.hashed_sketch import HashedSketch
from chimera_train.predict.length import Estimator
from chimera_train.predict.length_files import (
    MANIFEST,
    SCHEMA_VERSION,
    FeatureList,
    LengthManifest,
    ModelEntry,
    SketchKind,
    Target,
)
from chimera_train.predict.outside import Bounds
from chimera_train.predict.ranker import Ranker, Scorer
from chimera_train.traces.split import fingerprints

__all__ = ["METRICS", "file_names", "require_replaceable", "write_length"]

METRICS = "metrics.json"
CARD = "model_card.md"


def require_replaceable(directory: Path) -> None:
    """Check that writing to ``directory`` destroys nothing but an earlier result.

    Raises:
        ConfigError: it is a file, or holds files that ``fit length`` did not write.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise ConfigError(f"{directory} is a file: give a directory to --out.")
    ours = _written(directory)
    foreign = sorted(entry.name for entry in directory.iterdir() if entry.name not in ours)
    if foreign:
        raise ConfigError(
            f"{directory} holds '{foreign[0]}', which 'fit length' did not write: give an empty or"
            " new directory to --out."
        )


def _written(directory: Path) -> set[str]:
    """Names of the files of an earlier result, also of one that this version cannot read."""
    try:
        named = read_json_object(directory / MANIFEST).get("sha256")
    except DataError:
        return set()
    return {MANIFEST, METRICS, CARD, *named} if isinstance(named, dict) else set()


def write_length(
    directory: Path,
    fitted: FittedLength,
    settings: LengthSettings,
    metrics: Mapping[str, Any],
    question_ids: pd.Series,
    target: Target = "remaining",
) -> None:
    """Write what ``LengthPredictor.load`` or ``Ranker.load`` reads, the figures and a model card.

    The questions that it was fitted on are written as fingerprints, so that it is not judged on
    them later.

    An earlier result in ``directory`` is replaced as a whole.

    Raises:
        ConfigError: ``directory`` holds something else (``require_replaceable``).
    """
    require_replaceable(directory)
    predictor = fitted.predictor
    features = predictor.features
    arrays: Mapping[str, Estimator | Scorer]
    bounds: Mapping[str, Bounds] = {}
    if isinstance(predictor, Ranker):
        arrays = predictor.scorers
    else:
        arrays, bounds = predictor.estimators, predictor.bounds
    names = file_names(predictor.models)
    if features.pooled and not isinstance(predictor, Ranker):
        names = dict.fromkeys(names, "all-models")
    with replaced_directory(directory) as staging:
        for model, name in names.items():
            arrays[model].save(staging / f"{name}.npz")
        if features.sketch is not None:
            features.sketch.save(staging)
        if not isinstance(predictor, Ranker):
            predictor.cells.save(staging)
        save_fitted(staging, fingerprints(question_ids))
        manifest = LengthManifest(
            schema_version=SCHEMA_VERSION,
            target=target,
            estimator=settings.estimator,
            sketch=_sketch_kind(features.sketch, settings),
            pooled=features.pooled,
            models={
                model: ModelEntry(
                    file=f"{name}.npz",
                    template_overhead_tokens=fitted.overheads[model],
                    rows=fitted.n_rows[model],
                    bounds=bounds.get(model),
                )
                for model, name in names.items()
            },
            workflows=list(features.workflows),
            stages=list(features.stages),
            features=FeatureList(version=FEATURES_VERSION, columns=list(features.columns)),
            quantiles=list(QUANTILES if bounds else ()),
            settings=settings.model_dump(),
            metrics=dict(metrics),
            sha256={path.name: sha256(path) for path in sorted(staging.iterdir())},
        )
        write_json(staging / METRICS, metrics)
        (staging / CARD).write_text(length_card(manifest), encoding="utf-8")
        write_json(staging / MANIFEST, manifest.model_dump())


def _sketch_kind(
    sketch: Sketch | None, settings: LengthSettings
) -> SketchKind | Literal["hashed"] | None:
    if isinstance(sketch, HashedSketch):
        return "hashed"
    return None if sketch is None else settings.sketch


def file_names(models: Iterable[str]) -> dict[str, str]:
    """A name for each model that files and registries accept, distinct even ignoring case."""
    taken = {"sketch", "encoder", "questions"}
    names: dict[str, str] = {}
    for model in models:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip("-.") or "model"
        name, n = slug, 1
        while name.lower() in taken:
            n += 1
            name = f"{slug}-{n}"
        taken.add(name.lower())
        names[model] = name
    return names

"""Writing a router's directory, whose files ``predict.router`` and ``router.explain`` read."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.errors import ConfigError
from chimera_train.files import sha256, write_json
from chimera_train.predict.fitted import FITTED, save_fitted
from chimera_train.predict.router import (
    MANIFEST,
    SCHEMA_VERSION,
    Kind,
    Router,
    RouterManifest,
)
from chimera_train.predict.router_neighbours import (
    KNN,
    NEIGHBOURS,
    QUESTIONS,
    Neighbours,
    Question,
    save_questions,
)
from chimera_train.predict.router_scorers import (
    BOOSTED,
    NETWORKS,
    PRIOR,
    TERMS,
    TOKENIZER,
    NetworkScorer,
)
from chimera_train.predict.text import SKETCH_FILES
from chimera_train.router.labels import Split
from chimera_train.router.settings import RouterSettings
from chimera_train.term_space import TermSpace
from chimera_train.traces.split import fingerprints

__all__ = ["CARD", "CHECKPOINT", "METRICS", "require_replaceable", "write_router"]

METRICS = "metrics.json"
CARD = "model_card.md"
CHECKPOINT = "checkpoint"

_EXCERPT_CHARACTERS = 200
_OURS = {
    MANIFEST, METRICS, CARD, CHECKPOINT, FITTED, NEIGHBOURS, QUESTIONS, KNN, BOOSTED, PRIOR, TERMS,
    TOKENIZER, *NETWORKS.values(), *SKETCH_FILES,
}  # fmt: skip


def require_replaceable(directory: Path) -> None:
    """Check that writing to ``directory`` destroys nothing but an earlier router.

    Raises:
        ConfigError: it is a file, or holds files that ``fit router`` does not write.
    """
    if directory.is_dir():
        foreign = sorted(path.name for path in directory.iterdir() if path.name not in _OURS)
        if foreign:
            raise ConfigError(
                f"{directory} holds '{foreign[0]}', which is not part of a router: choose another"
                " --out, or empty it."
            )
    elif directory.exists():
        raise ConfigError(f"{directory} is a file: choose a directory for --out.")


def write_router(
    directory: Path,
    kind: Kind,
    router: Router,
    parts: Split,
    space: TermSpace,
    metrics: dict[str, Any],
    settings: RouterSettings,
) -> RouterManifest:
    """Write what runs, the training questions that it is explained by, and the figures.

    Args:
        directory: exists, and is empty but for files that belong to ``kind``.
        kind: of the router.
        router: what runs.
        parts: what it was fitted and calibrated on.
        space: the terms of the training texts.
        metrics: the figures.
        settings: what it was fitted with.

    Returns:
        The manifest that was written.
    """
    training, scorer = parts.training, router.scorer
    scorer.save(directory)
    sketch = space.sketch(space.directions)
    sketch.save(directory)
    Neighbours.of(sketch, training.texts, training.success).save(directory)
    save_questions(
        directory,
        [
            Question(
                question_id=str(id_),
                text=text[:_EXCERPT_CHARACTERS] if settings.keep_texts else None,
            )
            for id_, text in zip(training.question_ids, training.texts, strict=True)
        ],
    )
    used = [*training.question_ids, *parts.validation.question_ids]
    save_fitted(directory, fingerprints(pd.Series(used)))
    manifest = RouterManifest(
        schema_version=SCHEMA_VERSION,
        kind=kind,
        labels=list(router.calibration.labels),
        network=scorer.settings if isinstance(scorer, NetworkScorer) else None,
        reads=settings.reads,
        latency_ms={
            model: None if np.isnan(latency) else float(latency)
            for model, latency in zip(training.models, training.latency_ms, strict=True)
        },
        sha256={path.name: sha256(path) for path in sorted(directory.iterdir()) if path.is_file()},
        metrics=metrics,
    )
    write_json(directory / METRICS, metrics)
    write_json(directory / MANIFEST, manifest.model_dump())
    return manifest

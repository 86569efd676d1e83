"""Why a router says what it says: the training questions like a text, and what would be chosen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chimera_train.predict.router import (
    Router,
    RouterManifest,
    load_router,
    read_manifest,
    verify_files,
)
from chimera_train.predict.router_neighbours import (
    NEIGHBOURS,
    QUESTIONS,
    Neighbours,
    load_questions,
)
from chimera_train.predict.text import SKETCH_FILES, TextSketch
from chimera_train.scheduling.chimera import choose_engine

__all__ = ["choices", "explain"]

# So that an engine of exactly the load (1 + τ)·L_fast is admitted whatever the rounding.
_ROUNDING = 1e-9


def explain(directory: Path, text: str, *, n_neighbours: int, delta_s: float) -> dict[str, Any]:
    """What the router in ``directory`` makes of ``text``.

    Returns:
        ``kind``; ``q``, model → calibrated confidence; ``neighbours``, the training questions most
        like the text with their ``question_id``, ``text``, ``similarity`` and ``success`` by model,
        none where the router was written without them, as in a bundle; and ``choices``
        (``choices``), none where a model's latency was not measured.

    Raises:
        DataError: a file is missing, altered or malformed.
    """
    manifest = read_manifest(directory)
    router = load_router(directory)
    q = router.predict([text])[0].tolist()
    latency_ms = [manifest.latency_ms.get(model) for model in router.models]
    known = [latency for latency in latency_ms if latency is not None]
    return {
        "kind": manifest.kind,
        "q": dict(zip(router.models, q, strict=True)),
        "neighbours": _neighbours(directory, manifest, router, text, n_neighbours),
        "delta_s": delta_s,
        "choices": choices(router.models, q, known, delta_s) if len(known) == len(q) else [],
    }


def choices(
    models: Sequence[str], q: Sequence[float], load_ms: Sequence[float], delta_s: float
) -> list[dict[str, Any]]:
    """What Chimera would choose from which τ on: ``tau`` and ``model``, by rising τ.

    The first has the τ 0. The choice is the scheduler's own (``scheduling.chimera``).

    Args:
        models: one engine each.
        q: their confidences.
        load_ms: their loads, all positive.
        delta_s: Δs.
    """
    load, confidence = np.array(load_ms, dtype=np.float64), np.array(q, dtype=np.float64)
    up = np.ones(len(models), dtype=np.bool_)
    found: list[dict[str, Any]] = []
    for tau in np.unique(load / load.min() - 1).tolist():
        engine, _ = choose_engine(load, confidence, up, tau + _ROUNDING, delta_s, True)
        if not found or found[-1]["model"] != models[engine]:
            found.append({"tau": tau, "model": models[engine]})
    return found


def _neighbours(
    directory: Path, manifest: RouterManifest, router: Router, text: str, n: int
) -> list[dict[str, Any]]:
    if not (directory / QUESTIONS).exists():
        return []
    verify_files(directory, manifest, [QUESTIONS, NEIGHBOURS, *SKETCH_FILES])
    questions = load_questions(directory)
    neighbours = Neighbours.load(directory, TextSketch.load(directory))
    return [
        {
            **questions[each.row].model_dump(),
            "similarity": each.similarity,
            "success": {
                model: None if np.isnan(rate) else rate
                for model, rate in zip(
                    router.models, neighbours.success[each.row].tolist(), strict=True
                )
            },
        }
        for each in neighbours.nearest(text, n)
    ]

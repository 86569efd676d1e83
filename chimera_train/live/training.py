"""What is known of the data that a bundle was trained on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from chimera_train.bundle.load import LENGTH
from chimera_train.predict.length_files import read_manifest
from chimera_train.predict.outside import BOUNDED_COUNTS
from chimera_train.traces.history import stage_history
from chimera_train.traces.store import load_traces

__all__ = ["Training", "load_training"]


@dataclass(frozen=True, slots=True)
class Training:
    """The training data; what is not known is None.

    Attributes:
        rows: its requests, with program_id, workflow, stage, model, prompt_tokens, output_tokens.
        prompt_range: fewest and most prompt tokens by model.
        workflows, stages: the names that it knows.
        distance: the overall Kendall-τ distance that ``fit length`` measured.
    """

    rows: pd.DataFrame | None = None
    prompt_range: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    workflows: frozenset[str] | None = None
    stages: frozenset[str] | None = None
    distance: float | None = None


def load_training(bundle: Path | None, traces: Path | None) -> Training:
    """What the bundle and the traces tell; the bundle where both do.

    Raises:
        DataError: one of the directories is not what it should be.
    """
    known: dict[str, Any] = {}
    if traces is not None:
        rows = stage_history(load_traces(traces))
        prompts = rows.groupby("model")["prompt_tokens"]
        known = {
            "rows": rows,
            "prompt_range": {
                str(model): (float(group.min()), float(group.max())) for model, group in prompts
            },
            "workflows": frozenset(rows["workflow"]),
            "stages": frozenset(rows["stage"]),
        }
    if bundle is not None:
        manifest = read_manifest(bundle / LENGTH)
        column = BOUNDED_COUNTS.index("prompt_tokens")
        known |= {
            "prompt_range": {
                model: (entry.bounds.least[column], entry.bounds.most[column])
                for model, entry in manifest.models.items()
                if entry.bounds is not None
            },
            "workflows": frozenset(manifest.workflows),
            "stages": frozenset(manifest.stages),
            "distance": manifest.metrics.get("kendall_distance", {}).get("overall"),
        }
    return Training(**known)

"""A length predictor small enough to be computed by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from chimera_train.predict.cells import SAMPLE, Cell, Cells
from chimera_train.predict.features import Features
from chimera_train.predict.forest import ForestArrays
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.outside import Bounds
from chimera_train.predict.text import TextSketch

MODELS = ("large", "small")
WORKFLOWS = ("math", "vote")
STAGES = ("solve", "verify")


def stump(feature: int, threshold: float) -> ForestArrays:
    """One tree: 10, 20, 30 tokens at or below the threshold, 100, 100, 400 above."""

    def integers(*values: int) -> Any:
        return np.array(values, dtype=np.int32)

    return ForestArrays(
        roots=integers(0),
        feature=integers(feature, -1, -1),
        threshold=np.array([threshold, -2, -2], dtype=np.float32),
        left=integers(1, -1, -1),
        right=integers(2, -1, -1),
        leaf_start=integers(0, 0, 3, 6),
        leaf_ranks=integers(0, 1, 2, 3, 3, 4),
        values=np.log1p([10.0, 20, 30, 100, 400]),
        value_rows=integers(1, 1, 1, 2, 1),
    )


def _cells(low: float, high: float) -> Iterator[Cell]:
    """0, 1, … 100 tokens times 10 in a workflow, 100 for a model, 1000 for all; verify has none."""
    tokens = np.arange(SAMPLE, dtype=np.float64)

    def cell(model: str | None, workflow: str | None, stage: str | None, scale: int) -> Cell:
        given = (tokens * scale).tolist()
        return Cell(
            model=model, workflow=workflow, stage=stage, rows=9, tokens=given, low=low, high=high
        )

    yield cell(None, None, None, 1000)
    yield cell(None, "math", "solve", 2)
    for model in MODELS:
        yield cell(model, None, None, 100)
        for workflow in WORKFLOWS:
            yield cell(model, workflow, None, 10)
            yield cell(model, workflow, "solve", 1)


@pytest.fixture
def make_predictor() -> Callable[..., LengthPredictor]:
    """``small`` goes by the prompt, ``large`` by the workflow; every cell is corrected alike."""

    def make(*, low: float = 0.0, high: float = 0.0) -> LengthPredictor:
        sketch = TextSketch(["double"], np.ones(1, np.float32), np.ones((1, 3), np.float32))
        features = Features(WORKFLOWS, STAGES, MODELS, sketch)
        column = features.columns.index
        bounds = Bounds(least=[0] * 4, most=[5, 99, 199, 1000], spread=1, novelty=1)
        return LengthPredictor(
            features,
            {
                "small": stump(column("prompt_tokens"), 50.5),
                "large": stump(column("workflow=math"), 0.5),
            },
            Cells(_cells(low, high)),
            dict.fromkeys(MODELS, bounds),
            {"small": 5, "large": 7},
        )

    return make


@pytest.fixture
def predictor(make_predictor: Callable[..., LengthPredictor]) -> LengthPredictor:
    return make_predictor()

"""What fit length makes of odd traces: predictions that are numbers, or one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.length.fit import fit_and_write
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import BoostedSettings, LengthSettings
from chimera_train.output import Output
from chimera_train.predict.length import LengthPredictor
from chimera_train.traces.split import HOLDOUT_FOLD, fold

N = 40
BOOSTED = {
    "estimator": "boosted",
    "boosted": BoostedSettings(n_rounds=10, min_samples_leaf=2, learning_rate=0.2),
}


def zero_lengths(builder: Any) -> None:
    for number in range(N):
        builder.add(f"q{number}", f"text {number % 5}", [number % 3, 0])


def huge_counts(builder: Any) -> None:
    for number in range(N):
        builder.add(f"q{number}", f"text {number % 5}", [10**7 - number, 10**7])
    for stage in builder.stages:
        stage.update(prompt_tokens=10**7, system_tokens=10**6, user_tokens=9 * 10**6)


def stages_of_the_holdout_only(builder: Any) -> None:
    for number in range(N):
        is_held_out = fold(f"q{number}") == HOLDOUT_FOLD
        lengths = [number, 7, 9] if is_held_out else [number]
        workflow = "other" if fold(f"q{number}") == 1 else "math"
        builder.add(f"q{number}", f"text {number % 5}", lengths, workflow=workflow)


def empty_texts(builder: Any) -> None:
    for number in range(N):
        builder.add(f"q{number}", ("", " \n\t ", "add add")[number % 3], [number, 3])


def enormous_texts(builder: Any) -> None:
    texts = ("x" * 10**6, "9" * 10**6, "\n" * 10**6, "add")
    for number in range(N):
        builder.add(f"q{number}", texts[number % 4], [number])


def odd_names(builder: Any) -> None:
    for number in range(N):
        for model in ("", "questions", "../a b\n"):
            builder.add(f"q{number}", "text", [number], model=model, workflow="w=1")


def repeated_questions(builder: Any) -> None:
    for number in range(N):
        builder.add(f"q{number}", f"text {number % 5}", [number])
    builder.questions += [{**row, "text": "another"} for row in builder.questions]


@pytest.mark.parametrize("estimator", [{}, BOOSTED])
@pytest.mark.parametrize(
    "fill",
    [
        zero_lengths,
        huge_counts,
        stages_of_the_holdout_only,
        empty_texts,
        enormous_texts,
        odd_names,
        repeated_questions,
    ],
)
def test_predictions_are_numbers(
    builder: Any,
    quick: LengthSettings,
    output: Output,
    tmp_path: Path,
    fill: Callable[[Any], None],
    estimator: dict[str, Any],
) -> None:
    fill(builder)
    traces = builder.traces()
    settings = quick.model_copy(update={**estimator, "n_estimators": 4})
    found = fit_and_write(traces, tmp_path / "length", settings, output)
    json.dumps(found.metrics, allow_nan=False)
    rows = stage_rows(traces)
    predictor = LengthPredictor.load(tmp_path / "length")
    for model, own in rows.groupby("model"):
        requests = stage_requests(own)
        tokens = predictor.predict(str(model), requests, (0, 0.1, 0.5, 0.9, 1))
        assert np.isfinite(tokens).all()
        assert (tokens >= 0).all()
        assert (np.diff(tokens, axis=1) >= 0).all()
        for generated in (0, 10, 10**8):
            left = predictor.remaining_after(str(model), requests, [generated] * len(requests))
            assert np.isfinite(left).all()
            assert (left > 0).all() or generated == 0

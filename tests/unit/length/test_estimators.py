"""What is fitted, by which rows, and what the runtime makes of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.calibration import reserved
from chimera_train.length.estimators import POOLED, FittedLength, fit_estimators, training_table
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import BoostedSettings, LengthSettings

BOOSTED = {
    "estimator": "boosted",
    "boosted": BoostedSettings(n_rounds=20, learning_rate=0.2, min_samples_leaf=2),
}


def medians(fitted: FittedLength, name: str, X: np.ndarray) -> np.ndarray:
    """Of one estimator, evaluated by the library that fitted it."""
    estimator = fitted.estimators[name]
    if not isinstance(estimator, dict):
        return np.expm1(estimator.predict(X, [0.5]))
    levels = sorted(estimator)
    crossing = np.column_stack([estimator[level].predict(X) for level in levels])
    return np.expm1(np.sort(crossing, axis=1)[:, levels.index(0.5)])


@pytest.mark.parametrize("estimator", [{}, BOOSTED])
@pytest.mark.parametrize("per_model", [True, False])
def test_the_predictor_is_the_estimators(
    learnable: Callable[..., Any],
    quick: LengthSettings,
    estimator: dict[str, Any],
    per_model: bool,
) -> None:
    quick = quick.model_copy(update={**estimator, "per_model": per_model})
    rows = stage_rows(learnable().traces())
    fitted = fit_estimators(rows, quick)
    models = ["package:large", "package:small"]
    assert list(fitted.estimators) == (models if per_model else [POOLED])
    assert fitted.predictor.models == tuple(models)
    if not per_model:
        arrays = fitted.predictor.estimators
        assert arrays["package:large"] is arrays["package:small"]
    for model in models:
        own = rows[rows["model"] == model]
        requests = stage_requests(own)
        X, _ = fitted.predictor.features.rows(model, requests)
        found = fitted.predictor.predict_with_source(model, requests)
        inside = found.outside == 0
        assert inside.mean() > 0.5
        expected = medians(fitted, model if per_model else POOLED, X)
        np.testing.assert_allclose(found.tokens[inside, 0], expected[inside], atol=2e-6)
        assert fitted.n_rows[model] == len(own)


def test_pooled_estimators_are_told_the_model(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    rows = stage_rows(learnable().traces())
    apart, _ = training_table(rows, quick)
    pooled, X = training_table(rows, quick.model_copy(update={"per_model": False}))
    named = [name for name in pooled.columns if name not in apart.columns]
    assert named == ["model=package:large", "model=package:small"]
    for name in named:
        column = X[:, pooled.columns.index(name)]
        assert column.tolist() == (rows["model"] == name.removeprefix("model=")).tolist()


def test_intervals_are_calibrated_by_estimators_that_did_not_see_the_reserved_questions(
    learnable: Callable[..., Any], quick: LengthSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stage_rows(learnable(40).traces())
    seen = []

    def recorded(table: pd.DataFrame, *others: Any) -> Any:
        seen.append(set(table["question_id"]))
        return training_table(table, *others)

    monkeypatch.setattr("chimera_train.length.estimators.training_table", recorded)
    fit_estimators(rows, quick)
    is_kept = reserved(rows["question_id"])
    assert is_kept.any()
    assert seen == [set(rows.loc[~is_kept, "question_id"]), set(rows["question_id"])]


def test_the_template_overhead_is_what_messages_do_not_explain(
    builder: Any, quick: LengthSettings
) -> None:
    for number in range(5):
        builder.add(f"q{number}", "text", [5, 2])
    builder.stages[0]["prompt_tokens"] += 1  # the median forgives an odd one
    fitted = fit_estimators(stage_rows(builder.traces()), quick)
    assert fitted.predictor.template_overhead_tokens("package:small") == 30 - 11 - 12

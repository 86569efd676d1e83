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
        assert fitted.n_rows[model] == (~reserved(own["question_id"])).sum()


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


def test_pooled_estimators_learn_from_questions_that_other_models_answered(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    """Each model answers other questions; large models write twice as much."""
    few = stage_rows(learnable(40, ("package:small",)).traces())
    many = stage_rows(learnable(200, ("unused", "package:large"), prefix="other").traces())
    rows = pd.concat([few, many[many["model"] == "package:large"]], ignore_index=True)
    unseen = stage_rows(learnable(60, ("package:small",), seed=1, prefix="new").traces())
    errors = []
    for per_model in (True, False):
        settings = quick.model_copy(update={"per_model": per_model, "max_features": 1.0})
        predictor = fit_estimators(rows, settings).predictor
        predicted = predictor.predict("package:small", stage_requests(unseen))[:, 0]
        errors.append(np.abs(np.log1p(predicted) - np.log1p(unseen["target_tokens"])).mean())
    apart, together = errors
    assert together < apart + 0.02


@pytest.mark.parametrize("estimator", [{}, BOOSTED])
def test_reserved_questions_are_not_fitted_on(
    learnable: Callable[..., Any], quick: LengthSettings, estimator: dict[str, Any]
) -> None:
    quick = quick.model_copy(update=estimator)
    rows = stage_rows(learnable(300).traces())
    is_kept = reserved(rows["question_id"])
    assert 0 < is_kept.mean() < 0.2
    changed = rows.copy()
    changed.loc[is_kept, "target_tokens"] = 9999
    changed.loc[is_kept, "text"] = "quite another text"
    first, second = (fit_estimators(table, quick).predictor for table in (rows, changed))
    requests = stage_requests(rows[rows["model"] == "package:small"])
    np.testing.assert_array_equal(
        *(predictor.predict("package:small", requests) for predictor in (first, second))
    )
    high = [p.predict("package:small", requests, [0.9]).mean() for p in (first, second)]
    assert high[0] < high[1]  # they only move the ends of the intervals
    assert first.bounds == second.bounds


def test_the_template_overhead_is_what_messages_do_not_explain(
    builder: Any, quick: LengthSettings
) -> None:
    for number in range(5):
        builder.add(f"q{number}", "text", [5, 2])
    builder.stages[0]["prompt_tokens"] += 1  # the median forgives an odd one
    fitted = fit_estimators(stage_rows(builder.traces()), quick)
    assert fitted.predictor.template_overhead_tokens("package:small") == 30 - 11 - 12

from collections.abc import Callable
from typing import Any

import numpy as np

from chimera_train.length.forests import fit_forests, fit_sketch
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import LengthSettings


def test_the_predictor_is_the_estimators(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    rows = stage_rows(learnable().traces())
    fitted = fit_forests(rows, quick)
    assert list(fitted.forests) == ["package:large", "package:small"]
    for model, forest in fitted.forests.items():
        requests = stage_requests(rows[rows["model"] == model])
        assert fitted.n_rows[model] == len(requests)
        X = fitted.predictor.features.rows(requests)
        np.testing.assert_allclose(
            fitted.predictor.predict(model, requests, (0.1, 0.5, 0.9)),
            forest.predict(X, quantiles=[0.1, 0.5, 0.9]),
            rtol=1e-12,
        )


def test_the_template_overhead_is_what_messages_do_not_explain(
    builder: Any, quick: LengthSettings
) -> None:
    for number in range(5):
        builder.add(f"q{number}", "text", [5, 2])
    builder.stages[0]["prompt_tokens"] += 1  # the median forgives an odd one
    fitted = fit_forests(stage_rows(builder.traces()), quick)
    assert fitted.predictor.template_overhead_tokens("package:small") == 30 - 11 - 12


def test_a_leaf_that_nothing_splits_stays_bounded(builder: Any, quick: LengthSettings) -> None:
    for number in range(400):
        builder.add(f"q{number}", "text", [5])
    fitted = fit_forests(stage_rows(builder.traces()), quick)
    leaves = np.asarray(fitted.forests["package:small"].forest_.y_train_leaves)
    assert leaves.shape == (quick.n_estimators, 1, 1, 4 * quick.min_samples_leaf)


def test_a_sketch_is_no_longer_than_there_is_to_tell(quick: LengthSettings) -> None:
    settings = quick.model_copy(update={"sketch_components": 50})
    few_texts = fit_sketch(["add three numbers", "double it"], settings)
    few_terms = fit_sketch(["a", "b", "a b", "b a"], settings)
    assert few_texts is not None
    assert few_texts.n_components == 2
    assert few_terms is not None
    assert few_terms.n_components == 2


def test_no_terms_no_sketch(quick: LengthSettings) -> None:
    assert fit_sketch([""], quick) is None
    assert fit_sketch(["?!", "…"], quick) is None
    off = quick.model_copy(update={"sketch_components": 0})
    assert fit_sketch(["add three numbers"], off) is None

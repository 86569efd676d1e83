"""Predicted lengths against those computed by hand, from the library and by brute force."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantile_forest import RandomForestQuantileRegressor

from chimera_train.errors import DataError
from chimera_train.history import History
from chimera_train.length.forests import forest_arrays
from chimera_train.predict.cells import SAMPLE, Cell, Cells
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.length import INTERVAL, LengthPredictor
from chimera_train.predict.outside import Bounds

SHORT = StageRequest("math", "solve", "add", 5, 10, 20)
LONG = replace(SHORT, text="double", user_tokens=90, prompt_tokens=100)
QUANTILES = (0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 1.0)


def between(low: float, high: float, share: float) -> float:
    """Interpolated as the predictor does, on a logarithmic scale."""
    return float(np.expm1(np.log1p(low) + share * (np.log1p(high) - np.log1p(low))))


def test_predicts_quantiles_of_the_leaf(predictor: LengthPredictor) -> None:
    assert predictor.models == ("large", "small")
    np.testing.assert_array_equal(predictor.predict("small", [SHORT, LONG]), [[20], [100]])
    np.testing.assert_allclose(
        predictor.predict("small", [LONG, SHORT], (0.0, 0.75, 1.0)),
        [[100, between(100, 400, 0.5), 400], [10, between(20, 30, 0.5), 30]],
        atol=1e-6,
    )
    np.testing.assert_array_equal(
        predictor.predict("large", [SHORT, replace(SHORT, workflow="vote")]), [[100], [20]]
    )


def test_no_requests_give_no_predictions(predictor: LengthPredictor) -> None:
    for model in ("small", "medium"):
        predicted = predictor.predict_with_source(model, [], (0.1, 0.5))
        assert (predicted.tokens.shape, list(predicted.source)) == ((0, 2), [])
        assert predictor.remaining_after(model, [], []).shape == (0, 1)


def test_the_ends_are_corrected_and_the_median_is_not(
    make_predictor: Callable[..., LengthPredictor],
) -> None:
    plain = np.log1p(make_predictor().predict("small", [SHORT], QUANTILES)[0])
    moved = np.log1p(make_predictor(low=-0.4, high=0.8).predict("small", [SHORT], QUANTILES)[0])
    # Whole at 10 and 90 % and beyond, half way between them and the median.
    expected = [-0.4, -0.4, -0.4, -0.2, 0, 0.4, 0.8, 0.8, 0.8]
    np.testing.assert_allclose(moved - plain, expected, atol=1e-6)


def test_corrections_cross_neither_the_median_nor_zero(
    make_predictor: Callable[..., LengthPredictor],
) -> None:
    narrow = make_predictor(low=9, high=-9).predict("small", [SHORT], QUANTILES)
    np.testing.assert_array_equal(narrow, np.full((1, len(QUANTILES)), 20))
    wide = make_predictor(low=-9, high=0).predict("small", [SHORT], QUANTILES)
    np.testing.assert_array_equal(wide[0, :3], [0, 0, 0])
    assert (np.diff(wide[0]) >= 0).all()


def test_quantiles_come_in_the_order_in_which_they_were_asked(predictor: LengthPredictor) -> None:
    ascending = predictor.predict("small", [SHORT, LONG], QUANTILES)
    descending = predictor.predict("small", [SHORT, LONG], QUANTILES[::-1])
    np.testing.assert_array_equal(descending[:, ::-1], ascending)


@pytest.mark.parametrize(
    ("model", "change", "source", "median"),
    [
        ("small", {}, "model", 20),
        ("small", {"stage": "verify"}, "workflow", 500),
        ("small", {"stage": "never seen"}, "workflow", 500),
        ("small", {"workflow": "never seen"}, "global", 5000),
        ("medium", {}, "cell", 100),  # of all models
        ("medium", {"workflow": "vote"}, "global", 50000),
    ],
)
def test_what_was_never_seen_gets_the_narrowest_cell_that_was(
    predictor: LengthPredictor, model: str, change: dict[str, Any], source: str, median: float
) -> None:
    predicted = predictor.predict_with_source(model, [replace(SHORT, **change), SHORT])
    assert predicted.tokens[0, 0] == pytest.approx(median)
    assert predicted.source[0] == source
    assert predicted.outside.tolist() == [source != "model", model == "medium"]


def test_outside_the_training_data_a_share_is_the_cells(predictor: LengthPredictor) -> None:
    outside = replace(LONG, prompt_tokens=399)  # at twice the bound, both plus one
    predicted = predictor.predict_with_source("small", [LONG, outside], (0.5, 1.0))
    assert predicted.source == ["model", "model"]
    assert predicted.outside.tolist() == [0, 0.5]
    expected = [[100, 400], [between(100, 50, 0.5), between(400, 100, 0.5)]]
    np.testing.assert_allclose(predicted.tokens, expected, atol=1e-6)


def test_far_outside_only_the_cell_is_left(predictor: LengthPredictor) -> None:
    far = replace(LONG, text="", prompt_tokens=10**7, user_tokens=10**7)
    assert predictor.predict("small", [far])[0, 0] == pytest.approx(50, rel=1e-3)


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        # Leaf 10, 20, 30; then all rows, 10, 20, 30, 100, 100, 400; then twice what was generated.
        (0, 20), (9, 11), (10, between(20, 30, 0.5) - 10), (15, between(20, 30, 0.5) - 15),
        (25, 5), (30, 70), (99, 1), (100, 300), (399, 1), (400, 400), (5000, 5000),
    ],
)  # fmt: skip
def test_remaining_after_conditions_instead_of_flooring(
    predictor: LengthPredictor, generated: int, expected: float
) -> None:
    remaining = predictor.remaining_after("small", [SHORT], [generated])
    np.testing.assert_allclose(remaining, [[expected]], atol=1e-6)


def test_the_overrun_is_what_is_left_of_what_outlives_its_prediction(
    predictor: LengthPredictor,
) -> None:
    requests = [SHORT, replace(SHORT, stage="never seen"), replace(SHORT, prompt_tokens=10**6)]
    for model in ("small", "never seen"):
        median, overrun, interval = predictor.predict_with_interval(model, requests)
        np.testing.assert_array_equal(interval, predictor.predict(model, requests, INTERVAL))
        np.testing.assert_array_equal(median, predictor.predict(model, requests)[:, 0])
        left = predictor.remaining_after(model, requests, np.rint(median).astype(int).tolist())
        np.testing.assert_array_equal(overrun, left[:, 0])
        assert (overrun > 0).all()


def test_remaining_after_a_fallback_conditions_its_cell(predictor: LengthPredictor) -> None:
    unseen = replace(SHORT, stage="verify")  # 0, 10, … 1000
    remaining = predictor.remaining_after("small", [unseen] * 3, [0, 500, 1000])
    # Zero does not exceed zero: 10, 20, … 1000.
    expected = [between(500, 510, 0.5), 755 - 500, 1000]
    np.testing.assert_allclose(remaining[:, 0], expected, atol=0.2)


def test_what_outlives_its_cell_is_compared_with_all_rows(predictor: LengthPredictor) -> None:
    outside = replace(SHORT, prompt_tokens=399)  # cell 0, 1, … 100; rows up to 400
    remaining = predictor.remaining_after("small", [outside] * 2, [150, 400])
    np.testing.assert_allclose(remaining[:, 0], [250, 400])
    nines = Cells(
        [Cell(**{**c.model_dump(), "tokens": [9] * SAMPLE}) for c in predictor.cells.cells]
    )
    short = LengthPredictor(predictor.features, predictor.estimators, nines, predictor.bounds, {})
    unseen = replace(SHORT, stage="verify")
    assert short.remaining_after("small", [unseen], [30])[0, 0] == pytest.approx(70)
    assert short.remaining_after("medium", [SHORT], [300])[0, 0] == 300, "no rows of its own"


def test_an_unknown_model_has_no_template(predictor: LengthPredictor) -> None:
    with pytest.raises(DataError, match=r"'medium'.*large, small"):
        predictor.template_overhead_tokens("medium")
    assert predictor.template_overhead_tokens("large") == 7


def test_refuses_an_estimator_that_needs_more_columns(predictor: LengthPredictor) -> None:
    with pytest.raises(DataError, match="'large' needs 14 features, but there are 13"):
        LengthPredictor(
            Features([], [], ["large"], None),
            {"large": predictor.estimators["large"]}, predictor.cells, predictor.bounds, {},
        )  # fmt: skip


def test_refuses_an_estimator_without_bounds(predictor: LengthPredictor) -> None:
    bounds = {"large": predictor.bounds["large"]}
    with pytest.raises(DataError, match="'small' lacks the bounds of its training data: fit again"):
        LengthPredictor(predictor.features, predictor.estimators, predictor.cells, bounds, {})


def random_requests(n: int, seed: int) -> list[StageRequest]:
    rng = np.random.default_rng(seed)
    return [
        StageRequest(
            workflow=("math", "vote")[rng.integers(2)],
            stage="solve",
            text="",
            system_tokens=int(rng.integers(9)),
            user_tokens=int(rng.integers(200)),
            prompt_tokens=int(rng.integers(300)),
            history=History().after("plan", 30, int(rng.integers(100))),
        )
        for _ in range(n)
    ]


def fit(seed: int) -> tuple[RandomForestQuantileRegressor, LengthPredictor, np.ndarray]:
    """A forest of the library, a predictor with it and nothing else, and its targets."""
    requests = random_requests(150, seed)
    features = Features(["math", "vote"], ["solve"], ["m"], None)
    X, _ = features.rows("m", requests)
    rng = np.random.default_rng(seed)
    Y = np.floor((1 + X[:, 1]) * rng.exponential(10, size=len(X)))
    forest = RandomForestQuantileRegressor(
        n_estimators=6, min_samples_leaf=4, max_samples_leaf=16, random_state=seed
    ).fit(X, np.log1p(Y))
    names = [None, None, None], ["m", None, None], ["m", "math", "solve"], ["m", "vote", "solve"]
    cells = Cells(
        Cell(model=model, workflow=workflow, stage=stage, rows=1, tokens=[1.0] * SAMPLE)
        for model, workflow, stage in names
    )
    bounds = Bounds(least=[0] * 4, most=[1e9] * 4, spread=1e9, novelty=1e9)
    predictor = LengthPredictor(
        features, {"m": forest_arrays(forest)}, cells, {"m": bounds}, {"m": 0}
    )
    return forest, predictor, Y


ROUNDING = 5.1e-7  # predictions are rounded to a millionth of a token


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_equals_the_library(seed: int) -> None:
    forest, predictor, _ = fit(seed)
    requests = random_requests(60, seed + 1)
    X, _ = predictor.features.rows("m", requests)
    predicted = predictor.predict_with_source("m", requests, QUANTILES)
    assert not predicted.outside.any()
    expected = np.expm1(forest.predict(X, quantiles=list(QUANTILES)))
    np.testing.assert_allclose(predicted.tokens, expected, rtol=1e-9, atol=ROUNDING)


def pools(forest: RandomForestQuantileRegressor, X: np.ndarray) -> list[np.ndarray]:
    """The targets in each row's leaves, straight from the library's tables."""
    leaves = np.asarray(forest.forest_.y_train_leaves)[:, :, 0, :]
    targets = np.rint(np.expm1(np.asarray(forest.forest_.y_train)[0]))
    result = []
    for nodes in forest.apply(X):
        indices = np.concatenate([leaves[tree, node] for tree, node in enumerate(nodes)])
        result.append(targets[indices[indices > 0] - 1])
    return result


@given(st.integers(0, 1000), st.floats(0, 1.1))
@settings(deadline=None, max_examples=15)
def test_remaining_after_equals_brute_force(seed: int, share: float) -> None:
    forest, predictor, targets = fit(seed)
    requests = random_requests(30, seed + 1)
    X, _ = predictor.features.rows("m", requests)
    g = int(share * targets.max())
    actual = predictor.remaining_after("m", requests, [g] * len(requests), QUANTILES)
    for row, pool in zip(actual, pools(forest, X), strict=True):
        rest = pool[pool > g]
        if not rest.size:
            rest = targets[targets > g]  # all training rows stand in
        expected = np.expm1(np.quantile(np.log1p(rest), QUANTILES)) - g if rest.size else g
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=2 * ROUNDING)
    assert (actual > 0).all()


@given(
    st.sampled_from(["small", "large", "medium"]),
    st.sampled_from(["math", "vote", ""]),
    st.sampled_from(["solve", "verify", ""]),
    st.text(st.characters()),
    *[st.integers(0, 10**7)] * 5,
)
@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_is_never_nan(
    predictor, model, workflow, stage, text, system, user, prompt, output, generated
):
    history = History().after("solve", prompt, output)
    request = StageRequest(workflow, stage, text, system, user, prompt, history)
    tokens = predictor.predict(model, [request], QUANTILES)[0]
    assert np.isfinite(tokens).all()
    assert (tokens >= 0).all()
    assert (np.diff(tokens) >= 0).all()
    remaining = predictor.remaining_after(model, [request], [generated], QUANTILES)
    assert np.isfinite(remaining).all()
    assert (remaining > 0).all()


def test_threads_share_it(predictor: LengthPredictor) -> None:
    texts = ("add", "double", "halve", "double it")
    requests = [
        replace(SHORT, text=f"{texts[i % 4]} {i}", user_tokens=i % 90, prompt_tokens=i % 300)
        for i in range(600)
    ]
    expected = predictor.predict("small", requests, QUANTILES)

    def predict(thread: int) -> bool:
        order = np.random.default_rng(thread).permutation(len(requests))
        rows = [predictor.predict("small", [requests[i]], QUANTILES)[0] for i in order]
        return bool((np.array(rows) == expected[order]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(predict, range(8)))

"""Rows of features: which columns there are, in which order, and that they are always numbers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.history import HISTORY_COLUMNS, History
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import TEXT_COLUMNS, text_columns

MODELS = ("large", "small")
# Two components, then one direction for each model.
SKETCH = TextSketch(
    ["double"], np.ones(1, np.float32), np.array([[3, -1, 0.5, 0.25]], dtype=np.float32)
)
NUMBERS = (
    "system_tokens",
    "user_tokens",
    "prompt_tokens",
    *HISTORY_COLUMNS,
    "earlier_runs",
    "other_tokens",
    "prompt_growth",
)
NAMES = ("workflow=math", "workflow=vote", "stage=solve")
FEATURES = Features(["math", "vote"], ["solve"], MODELS, SKETCH)
HISTORY = History().after("solve", 40, 30).after("solve", 60, 20)
REQUEST = StageRequest("math", "solve", "double", 5, 90, 160, HISTORY)


def named(features: Features, model: str, request: StageRequest) -> dict[str, float]:
    (row,), _ = features.rows(model, [request])
    return dict(zip(features.columns, row.tolist(), strict=True))


def test_columns_and_their_order() -> None:
    text = (*TEXT_COLUMNS, "sketch0", "sketch1", "score")
    assert FEATURES.columns == (*NUMBERS, *NAMES, *text)
    pooled = Features(["math", "vote"], ["solve"], MODELS, SKETCH, pooled=True)
    assert pooled.columns == (*NUMBERS, *NAMES, "model=large", "model=small", *text)
    assert Features(["math", "vote"], ["solve"], MODELS, None).columns == (*NUMBERS, *NAMES)
    assert len(set(FEATURES.columns)) == FEATURES.n_features


def test_a_row_holds_counts_history_names_and_text() -> None:
    (row,), novelty = FEATURES.rows("small", [REQUEST])
    assert row.dtype == np.float32
    np.testing.assert_array_equal(row[:3], [5, 90, 160])
    np.testing.assert_array_equal(row[3:10], HISTORY.columns())
    # Run twice; 160 − 5 − 90 − 50 tokens of neither message nor answer; 160 − 60 − 20 new ones.
    np.testing.assert_array_equal(row[10:13], [2, 15, 80])
    np.testing.assert_array_equal(row[13:16], [1, 0, 1])
    np.testing.assert_array_equal(row[16:-3], text_columns("double"))
    np.testing.assert_array_equal(row[-3:], [3, -1, 0.25])
    assert novelty.tolist() == [0]


def test_a_model_differs_from_another_by_its_score_and_if_pooled_its_name() -> None:
    small, large = (named(FEATURES, model, REQUEST) for model in ("small", "large"))
    assert {name for name in small if small[name] != large[name]} == {"score"}
    assert (small["score"], large["score"]) == (0.25, 0.5)
    pooled = Features(["math", "vote"], ["solve"], MODELS, SKETCH, pooled=True)
    small, large = (named(pooled, model, REQUEST) for model in ("small", "large"))
    assert (small["model=small"], small["model=large"]) == (1, 0)
    assert (large["model=small"], large["model=large"]) == (0, 1)


def test_unknown_names_leave_their_columns_at_zero() -> None:
    pooled = Features(["math", "vote"], ["solve"], MODELS, SKETCH, pooled=True)
    values = named(pooled, "medium", replace(REQUEST, workflow="solve", stage="math"))
    assert [values[name] for name in (*NAMES, "model=large", "model=small")] == [0] * 5
    assert values["score"] == 0
    assert (values["earlier_runs"], values["sketch0"]) == (0, 3)


def test_unknown_words_are_novel() -> None:
    _, novelty = FEATURES.rows("small", [REQUEST, replace(REQUEST, text="double or nothing")])
    np.testing.assert_allclose(novelty, [0, 2 / 3])


def test_no_requests_give_no_rows() -> None:
    X, novelty = FEATURES.rows("small", [])
    assert (X.shape, novelty.shape) == ((0, FEATURES.n_features), (0,))


def test_without_a_sketch_nothing_is_novel() -> None:
    X, novelty = Features(["math"], ["solve"], MODELS, None).rows("small", [REQUEST] * 2)
    assert (X.shape, novelty.tolist()) == ((2, 15), [0, 0])


@pytest.mark.parametrize("model", ["small", "medium"])
@given(text=st.text(st.characters()), tokens=st.sampled_from([0, 1, 10**7]))
def test_rows_are_finite(model: str, text: str, tokens: int) -> None:
    history = History().after("solve", tokens, tokens)
    request = StageRequest("math", "solve", text, tokens, tokens, tokens, history)
    X, novelty = FEATURES.rows(model, [request, replace(request, text="", history=History())])
    assert np.isfinite(X).all()
    assert np.isfinite(novelty).all()


def test_a_row_does_not_depend_on_its_company() -> None:
    requests = [replace(REQUEST, text=f"double {i}", user_tokens=i) for i in range(300)]
    X, novelty = FEATURES.rows("small", requests)  # more texts than are remembered
    for i in (0, 150, 299):
        row, one = FEATURES.rows("small", [requests[i]])
        np.testing.assert_array_equal(row[0], X[i])
        assert one[0] == novelty[i]

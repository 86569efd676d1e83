"""The sketch of texts, and that no row's score knows the row's own length."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.rows import stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.sketch import fit_sketch


def of_texts(*texts: str) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "text": texts, "workflow": "w", "stage": "s", "model": "m",
            "fold": np.arange(len(texts)) % 5, "target_tokens": np.arange(len(texts)),
        }
    )  # fmt: skip


def test_a_sketch_is_no_longer_than_there_is_to_tell(quick: LengthSettings) -> None:
    settings = quick.model_copy(update={"sketch_components": 50})
    few_texts, _ = fit_sketch(of_texts("add three numbers", "double three numbers"), settings)
    few_terms, _ = fit_sketch(of_texts("a", "b", "a", "b c", "a d"), settings)
    assert few_texts is not None
    assert few_texts.n_components == 2 + 1  # and the model's own direction
    assert few_terms is not None
    assert few_terms.n_components == 2 + 1


@pytest.mark.parametrize("texts", [[""], ["?!", "…"], ["each", "differs"], ["same"] * 9])
def test_no_common_terms_no_sketch(quick: LengthSettings, texts: list[str]) -> None:
    sketch, scores = fit_sketch(of_texts(*texts), quick)
    assert sketch is None
    assert scores.tolist() == [0] * len(texts)


def test_the_sketch_can_be_left_out(quick: LengthSettings) -> None:
    off = quick.model_copy(update={"sketch_components": 0})
    assert fit_sketch(of_texts("add three numbers", "add three numbers"), off)[0] is None


def test_a_score_does_not_know_the_lengths_of_its_own_fold(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    rows = stage_rows(learnable(80).traces())
    _, scores = fit_sketch(rows, quick)
    rng = np.random.default_rng(0)
    # Within cells, whose mean is the zero of the scores.
    shuffled = rows.groupby(["fold", "model", "stage"])["target_tokens"].transform(rng.permutation)
    changed = rows.assign(target_tokens=shuffled.where(rows["fold"] == 2, rows["target_tokens"]))
    assert (changed["target_tokens"] != rows["target_tokens"]).sum() > 10
    _, other_scores = fit_sketch(changed, quick)
    is_own = (rows["fold"] == 2).to_numpy()
    np.testing.assert_allclose(other_scores[is_own], scores[is_own], atol=1e-9)
    assert (other_scores[~is_own] != scores[~is_own]).any()


def test_scores_of_lengths_that_no_text_tells_say_nothing(
    builder: Any, quick: LengthSettings
) -> None:
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(200)]
    for number in range(400):
        text = " ".join(rng.choice(words, size=6))
        builder.add(f"q{number}", text, [int(rng.integers(1, 1000))])
    rows = stage_rows(builder.traces())
    sketch, scores = fit_sketch(rows, quick)
    assert sketch is not None
    logs = np.log1p(rows["target_tokens"])
    fitted = [sketch.describe(text)[0][-1] for text in rows["text"]]
    assert np.corrcoef(fitted, logs)[0, 1] > 0.5  # what a row gains that fits its own score
    assert abs(np.corrcoef(scores, logs)[0, 1]) < 0.2

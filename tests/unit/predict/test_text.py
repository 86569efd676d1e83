"""The sketch of a text against scikit-learn's vectorizer."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from chimera_train.errors import DataError
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import TERM

CORPUS = [
    "Add 3 and 4, then double the sum.",
    "Janet's ducks lay 16 eggs; she sells the remainder.",
    "Straße, ÉTÉ and İstanbul: 3 + 3 = 6",
    "double double double 7",
    "x_1 = y_2\n\nreturn x_1",
    "She bakes 4 muffins and eats three.",
]


@pytest.fixture(scope="module")
def vectorizer() -> TfidfVectorizer:
    vectorizer = TfidfVectorizer(
        token_pattern=TERM.pattern, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float64
    )
    return vectorizer.fit(CORPUS)


@pytest.fixture(scope="module")
def directions(vectorizer: TfidfVectorizer) -> np.ndarray:
    shape = (len(vectorizer.get_feature_names_out()), 4)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.fixture(scope="module")
def sketch(vectorizer: TfidfVectorizer, directions: np.ndarray) -> TextSketch:
    terms = vectorizer.get_feature_names_out().tolist()
    return TextSketch(terms, vectorizer.idf_.astype(np.float32), directions)


words = st.sampled_from(["double", "DOUBLE", "3", "16", "İstanbul", "x_1", "été", "unseen", "eggs"])
texts = st.one_of(st.text(), st.lists(words).map(" ".join), st.lists(words).map("-".join))


@given(texts)
def test_equals_scikit_learn(
    vectorizer: TfidfVectorizer, directions: np.ndarray, sketch: TextSketch, text: str
) -> None:
    expected = (vectorizer.transform([text]) @ directions)[0]
    vector, novelty = sketch.describe(text)
    np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-5)
    assert vector.shape == (sketch.n_components,)
    words = set(TERM.findall(text.lower()))
    unknown = words - set(vectorizer.vocabulary_)
    assert novelty == (len(unknown) / len(words) if words else 0)


@pytest.mark.parametrize(
    ("text", "novelty"),
    [
        ("", 0.0),
        ("…!", 0.0),
        ("\ud800", 0.0),
        ("nothing known here", 1.0),
        ("double nothing nothing 3", 1 / 3),  # of three distinct words
        ("3 double", 0.0),  # a pair that no training text has
    ],
)
def test_novelty_is_the_share_of_unknown_words(
    sketch: TextSketch, text: str, novelty: float
) -> None:
    vector, actual = sketch.describe(text)
    assert actual == pytest.approx(novelty)
    assert vector.any() == any(word in text for word in ("double", "3"))


def test_survives_a_round_trip(sketch: TextSketch, tmp_path: Path) -> None:
    names = sketch.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    loaded = TextSketch.load(tmp_path)
    for text in CORPUS:
        np.testing.assert_array_equal(loaded.describe(text)[0], sketch.describe(text)[0])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (None, "does not exist"),
        ({"double": 0}, "not a list of terms"),
        (["double", 3], "not a list of terms"),
        (["double"], "fit again"),
    ],
)
def test_refuses_another_vocabulary(
    sketch: TextSketch, tmp_path: Path, terms: object, message: str
) -> None:
    sketch.save(tmp_path)
    path = tmp_path / "vocabulary.json"
    if terms is None:
        path.unlink()
    else:
        path.write_text(json.dumps(terms))
    with pytest.raises(DataError, match=message):
        TextSketch.load(tmp_path)


def test_refuses_numbers_that_are_not_finite() -> None:
    with pytest.raises(DataError, match="not finite"):
        TextSketch(["a"], np.array([np.inf]), np.ones((1, 2)))

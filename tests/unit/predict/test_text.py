import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from chimera_train.errors import DataError
from chimera_train.predict.text import TOKEN_PATTERN, TextSketch

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
    return TfidfVectorizer(token_pattern=TOKEN_PATTERN).fit(CORPUS)


@pytest.fixture(scope="module")
def svd(vectorizer: TfidfVectorizer) -> TruncatedSVD:
    return TruncatedSVD(4, random_state=0).fit(vectorizer.transform(CORPUS))


@pytest.fixture(scope="module")
def sketch(vectorizer: TfidfVectorizer, svd: TruncatedSVD) -> TextSketch:
    terms = vectorizer.get_feature_names_out().tolist()
    return TextSketch(terms, vectorizer.idf_, svd.components_.T.copy())


words = st.sampled_from(["double", "DOUBLE", "3", "16", "İstanbul", "x_1", "été", "unseen", "eggs"])
texts = st.one_of(st.text(), st.lists(words).map(" ".join), st.lists(words).map("-".join))


@given(st.lists(texts, max_size=4))
def test_equals_scikit_learn(
    vectorizer: TfidfVectorizer, svd: TruncatedSVD, sketch: TextSketch, documents: list[str]
) -> None:
    expected = np.zeros((0, 4))
    if documents:  # scikit-learn refuses an empty list
        expected = svd.transform(vectorizer.transform(documents))
    np.testing.assert_allclose(sketch.transform(documents), expected, atol=1e-12)


def test_a_text_without_known_terms_is_zero(sketch: TextSketch) -> None:
    assert not sketch.transform(["", "nothing known here", "…!"]).any()


def test_survives_a_round_trip(sketch: TextSketch, tmp_path: Path) -> None:
    names = sketch.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    loaded = TextSketch.load(tmp_path)
    np.testing.assert_array_equal(loaded.transform(CORPUS), sketch.transform(CORPUS))


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

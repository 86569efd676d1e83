import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.router.baselines import baseline_scores
from chimera_train.router.labels import RouterData


def _training(texts: list[str], success: np.ndarray) -> RouterData:
    return RouterData(
        models=tuple(f"m{i}" for i in range(success.shape[1])),
        question_ids=np.array(texts, dtype=object),
        texts=texts,
        success=success,
        latency_ms=np.ones(success.shape[1]),
    )


def test_words_that_decide_are_found_and_the_prior_is_blind() -> None:
    texts = [f"{word} {i}" for i in range(20) for word in ("easy", "hard")]
    success = np.array([[float("easy" in text), 1.0] for text in texts])
    success[0, 0] = np.nan
    scores = baseline_scores(_training(texts, success), ["easy one", "hard one"])
    assert {name: array.shape for name, array in scores.items()} == {
        "prior": (2, 2),
        "tfidf_logreg": (2, 2),
        "knn": (2, 2),
    }
    assert scores["prior"][:, 0] == pytest.approx([19 / 39] * 2)
    for name in ("tfidf_logreg", "knn"):
        assert scores[name][0, 0] > 0.8 > 0.2 > scores[name][1, 0]
        # A model that solves everything leaves nothing to learn.
        assert scores[name][:, 1] == pytest.approx([1, 1])


def test_numbers_are_words() -> None:
    texts = ["1", "2"] * 20
    success = np.array([[float(text == "1")] for text in texts])
    scores = baseline_scores(_training(texts, success), ["1", "2"])
    assert scores["tfidf_logreg"][0, 0] > scores["tfidf_logreg"][1, 0]


def test_refuses_texts_without_words() -> None:
    with pytest.raises(DataError, match="no words"):
        baseline_scores(_training(["?!", "..."], np.array([[1.0], [0.0]])), ["?"])

"""What a router has to beat: the prior, words with logistic regression, and nearest neighbours."""

import numpy as np
import numpy.typing as npt
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsRegressor

from chimera_train.errors import DataError
from chimera_train.router.labels import SOLVED, RouterData

__all__ = ["baseline_scores"]

Array = npt.NDArray[np.float64]

_NEIGHBOURS = 15
_WORD = r"\w+"  # scikit-learn's own pattern drops digits


def baseline_scores(training: RouterData, texts: list[str]) -> dict[str, Array]:
    """The confidences of each baseline on ``texts``, each of shape (len(texts), n_models).

    ``prior`` is the model's success rate whatever the question; ``tfidf_logreg`` a logistic
    regression per model on TF-IDF; ``knn`` the mean success rate of the 15 nearest training
    questions by TF-IDF cosine.

    Raises:
        DataError: the training texts hold no word.
    """
    vectorizer = TfidfVectorizer(token_pattern=_WORD)
    try:
        known = vectorizer.fit_transform(training.texts)
    except ValueError as error:
        raise DataError(f"The training texts hold no words: {error}.") from error
    asked = vectorizer.transform(texts)

    shape = (len(texts), len(training.models))
    scores = {name: np.zeros(shape) for name in ("prior", "tfidf_logreg", "knn")}
    for m in range(len(training.models)):
        rows = ~np.isnan(training.success[:, m])
        success = training.success[rows, m]
        solved = success >= SOLVED
        scores["prior"][:, m] = success.mean()
        if solved.any() and not solved.all():
            regression = LogisticRegression(max_iter=1000).fit(known[rows], solved)
            scores["tfidf_logreg"][:, m] = regression.predict_proba(asked)[:, 1]
        else:
            scores["tfidf_logreg"][:, m] = success.mean()
        neighbours = KNeighborsRegressor(min(_NEIGHBOURS, len(success)), metric="cosine")
        scores["knn"][:, m] = neighbours.fit(known[rows], success).predict(asked)
    return scores

"""Fitting the text sketch: directions in which the training texts differ, and lengths do.

Singular vectors tell texts apart; they do not know what is wanted of them. A ridge regression of
the lengths on the terms, and on the embeddings where there are some, does, so each model gets its
coefficients as one direction more. A row that helped to fit its own score would promise too much,
so training rows get the scores of coefficients fitted on the other folds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import Ridge

from chimera_train.hashed_text import HashKey
from chimera_train.length.judge import CELL
from chimera_train.length.settings import LengthSettings
from chimera_train.predict.encoder import Embedder, EncoderSketch, JointSketch
from chimera_train.predict.features import Sketch
from chimera_train.predict.hashed_sketch import HashedSketch
from chimera_train.term_space import TermSpace, fit_term_space

__all__ = ["fit_sketch"]

Floats = npt.NDArray[np.float64]


def fit_sketch(
    rows: pd.DataFrame,
    settings: LengthSettings,
    embedder: Embedder | None = None,
    key: HashKey | None = None,
) -> tuple[Sketch | None, Floats]:
    """A sketch of the rows' texts, and each row's score from the other folds, shape (n,).

    Of TF-IDF, and of embeddings beside it where there is an ``embedder``. With a ``key`` the texts
    are hashed with it (``rows.with_hashed_texts``). No sketch, and scores of zero, where the texts
    tell nothing apart or the settings leave it out.
    """
    text, texts = pd.factorize(rows["text"], sort=True)
    if settings.sketch_components == 0:
        return None, np.zeros(len(rows))
    terms = fit_term_space(
        list(texts),
        components=settings.sketch_components,
        max_vocabulary=settings.max_vocabulary,
        seed=settings.seed,
    )
    if embedder is not None:
        return _joint(terms, embedder, text, list(texts), rows, settings)
    if not terms.names:
        return None, np.zeros(len(rows))
    coefficients, scores = _length_scores(terms.vectors, text, rows, settings.score_ridge)
    sketch = terms.sketch(terms.directions, coefficients)
    return sketch if key is None else HashedSketch(sketch, key), scores


def _joint(
    terms: TermSpace,
    embedder: Embedder,
    text: npt.NDArray[np.int64],
    texts: Sequence[str],
    rows: pd.DataFrame,
    settings: LengthSettings,
) -> tuple[JointSketch | None, Floats]:
    """Directions of the terms, of the embeddings, and of the lengths in both together."""
    from chimera_train.length.encoder import fit_projection  # torch takes seconds

    embeddings = embedder.embed(texts)
    mean, projection = fit_projection(embeddings, settings.sketch_components)
    if not projection.shape[1]:
        return None, np.zeros(len(rows))
    # Both have length one, and the penalty weighs them alike.
    both = hstack([terms.vectors, csr_matrix(embeddings - mean)], format="csr")
    coefficients, scores = _length_scores(both, text, rows, settings.score_ridge)
    n, k = terms.directions.shape
    of_terms = terms.sketch(terms.directions, np.zeros((n, projection.shape[1])), coefficients[:n])
    of_embedding = np.hstack([np.zeros((embedder.dim, k)), projection, coefficients[n:]])
    return JointSketch(of_terms, EncoderSketch(embedder, mean, of_embedding)), scores


def _length_scores(
    vectors: Any, text: npt.NDArray[np.int64], rows: pd.DataFrame, penalty: float
) -> tuple[Floats, Floats]:
    """Where each model's answers get longer, and the rows' scores in that direction.

    Args:
        vectors: of the texts, dense or sparse, shape (n_texts, n_dimensions).
        text: which text each row has, shape (n,).
        rows: columns of ``CELL``, fold, target_tokens.
        penalty: of the squared coefficients.

    Returns:
        Coefficients, shape (n_dimensions, n_models), models in order of their names; scores from
        the other folds, shape (n,).
    """
    logs = rows.assign(log=np.log1p(rows["target_tokens"].to_numpy(np.float64)))
    surplus = (logs["log"] - logs.groupby(CELL)["log"].transform("mean")).to_numpy()
    folds, scores = rows["fold"].to_numpy(), np.zeros(len(rows))

    def fit(chosen: npt.NDArray[np.int64]) -> Floats:
        # Stages of one text count as one, with the weight of all.
        used, place, n = np.unique(text[chosen], return_inverse=True, return_counts=True)
        mean = np.bincount(place, surplus[chosen]) / n
        ridge = Ridge(alpha=penalty, fit_intercept=False).fit(vectors[used], mean, n)
        return np.asarray(ridge.coef_)

    coefficients = []
    for positions in rows.groupby("model").indices.values():
        positions = np.asarray(positions)
        coefficients.append(fit(positions))
        for fold in np.unique(folds[positions]):
            is_own = folds[positions] == fold
            if not is_own.all():
                own = positions[is_own]
                scores[own] = vectors[text[own]] @ fit(positions[~is_own])
    return np.column_stack(coefficients), scores

"""Fitting TF-IDF and its leading singular vectors on texts, as ``predict.text`` evaluates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import TERM

__all__ = ["TermSpace", "fit_term_space"]


@dataclass(frozen=True, slots=True)
class TermSpace:
    """Texts as weighted terms.

    Attributes:
        terms: words and pairs of neighbours that two texts share, the columns.
        idf: inverse document frequency of each term, shape (n_terms,).
        weights: of the texts' terms, sparse, rows of length one, shape (n_texts, n_terms).
        directions: leading singular vectors as columns, shape (n_terms, k).
    """

    terms: list[str]
    idf: npt.NDArray[np.float64]
    weights: Any
    directions: npt.NDArray[np.float64]

    def sketch(self, *more: npt.NDArray[np.floating]) -> TextSketch:
        """The sketch on ``directions``, then on those of ``more``, each of shape (n_terms, any)."""
        directions = np.hstack([self.directions, *more]).astype(np.float32)
        return TextSketch(self.terms, self.idf.astype(np.float32), directions)


def fit_term_space(
    texts: Sequence[str], *, components: int, max_vocabulary: int, seed: int
) -> TermSpace | None:
    """The terms of ``texts``; None where no two texts share two of them.

    Args:
        texts: distinct ones.
        components: most singular vectors.
        max_vocabulary: most terms, the most frequent first.
        seed: of the decomposition.
    """
    vectorizer = TfidfVectorizer(
        token_pattern=TERM.pattern,
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2,
        max_features=max_vocabulary,
    )
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError:  # no text has a term, or no two texts share one
        return None
    rank = min(weights.shape)
    if rank < 2:
        return None
    svd = TruncatedSVD(min(components, rank), random_state=seed)
    # Where all texts have the same terms, the shares of the variance, which is none, mean nothing.
    with np.errstate(invalid="ignore", divide="ignore"):
        svd.fit(weights)
    names = vectorizer.get_feature_names_out().tolist()
    return TermSpace(names, vectorizer.idf_, weights, svd.components_.T)

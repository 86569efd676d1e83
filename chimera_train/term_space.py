"""Fitting TF-IDF and its leading singular vectors on texts, as ``predict.text`` evaluates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from chimera_train.hashed_text import Text
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import terms_of

__all__ = ["TermSpace", "fit_term_space"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TermSpace:
    """The terms of texts; none where there is too little of them.

    Attributes:
        names, idf: of each term.
        vectors: TF-IDF of the texts, shape (n_texts, n_terms).
        directions: leading singular vectors as columns, shape (n_terms, k).
    """

    names: Sequence[str | int]
    idf: Floats
    vectors: csr_matrix
    directions: Floats

    def sketch(self, *directions: Floats) -> TextSketch:
        """What projects on these columns, each part of shape (n_terms, any)."""
        return TextSketch(
            self.names, self.idf.astype(np.float32), np.hstack(directions).astype(np.float32)
        )


def fit_term_space(
    texts: Sequence[Text], *, components: int, max_vocabulary: int, seed: int
) -> TermSpace:
    """The words and pairs of words that two of the texts share.

    Args:
        texts: to fit on, all plain or all hashed.
        components: most singular vectors.
        max_vocabulary: most terms, the most frequent first.
        seed: of the decomposition.
    """
    none = TermSpace([], np.zeros(0), csr_matrix((len(texts), 0)), np.zeros((0, 0)))
    vectorizer = TfidfVectorizer(
        analyzer=_words_and_pairs,
        sublinear_tf=True,
        min_df=2,
        max_features=max_vocabulary,
    )
    try:
        vectors = vectorizer.fit_transform(texts)
    except ValueError:  # no text has a term, or no two texts share one
        return none
    rank = min(vectors.shape)
    if rank < 2:
        return none
    svd = TruncatedSVD(min(components, rank), random_state=seed)
    # Where all texts have the same terms, the shares of the variance, which is none, mean nothing.
    with np.errstate(invalid="ignore", divide="ignore"):
        svd.fit(vectors)
    names = vectorizer.get_feature_names_out().tolist()
    return TermSpace(names, vectorizer.idf_, vectors, svd.components_.T)


def _words_and_pairs(text: Text) -> Sequence[str | int]:
    if isinstance(text, str):
        words = terms_of(text)
        return [*words, *map(" ".join, pairwise(words))]
    return [*text.words, *text.pairs]

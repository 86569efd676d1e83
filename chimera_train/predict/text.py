"""A text as a short vector: TF-IDF projected on a few directions of the training texts.

Most directions are leading singular vectors (Chimera §3.4 lists a TF-IDF and SVD sketch of the text
among the features). One more for each model points where that model's answers get longer: the
coefficients of a ridge regression. Fitting is scikit-learn's (``length.sketch``); this module only
evaluates what was fitted, so that the gateway needs no scikit-learn.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.files import read_json, write_json
from chimera_train.predict.arrays import load_arrays, save_arrays
from chimera_train.predict.text_columns import terms_of

__all__ = ["SKETCH_FILES", "TextSketch"]

_VOCABULARY = "vocabulary.json"
_ARRAYS = "sketch.npz"
SKETCH_FILES = (_VOCABULARY, _ARRAYS)
"""What :meth:`TextSketch.save` writes."""


class TextSketch:
    """Evaluates a fitted ``TfidfVectorizer`` and directions to project on.

    The vectorizer counts words and pairs of neighbours (``ngram_range=(1, 2)``), with sublinear
    term frequencies and l2 norm.

    Args:
        terms: the vocabulary, in the order of the columns; numbers where they are hashes
            (``predict.hashed_sketch``).
        idf: inverse document frequency of each term, shape (n_terms,).
        directions: what to project on, as columns, shape (n_terms, k).

    Raises:
        DataError: the shapes do not agree or a number is not finite.
    """

    def __init__(
        self,
        terms: Sequence[str | int],
        idf: npt.NDArray[np.float32],
        directions: npt.NDArray[np.float32],
    ) -> None:
        n_terms = len(terms)
        if idf.shape != (n_terms,) or directions.ndim != 2 or len(directions) != n_terms:
            raise DataError(
                f"The text sketch has {n_terms} terms but idf of shape {idf.shape} and directions"
                f" of shape {directions.shape}: fit again."
            )
        if not (np.isfinite(idf).all() and np.isfinite(directions).all()):
            raise DataError("The text sketch has numbers that are not finite: fit again.")
        self._terms = terms
        self._column = {term: column for column, term in enumerate(terms)}
        self._idf = idf
        self._directions = directions

    @property
    def n_components(self) -> int:
        """Length k of a sketch."""
        return int(self._directions.shape[1])

    def along(self, directions: npt.NDArray[np.float32]) -> "TextSketch":
        """The same terms projected on other directions, columns of shape (n_terms, any)."""
        return TextSketch(self._terms, self._idf, directions)

    def describe(self, text: str) -> tuple[npt.NDArray[np.float64], float]:
        """The sketch of a text, shape (k,), and its novelty.

        A text without a known term is all zeros. Novelty is the share of the text's distinct words
        that are not in the vocabulary, 0 to 1.
        """
        terms = terms_of(text)
        return self.weigh(terms, map(" ".join, pairwise(terms)))

    def weigh(
        self, words: Sequence[str | int], pairs: Iterable[str | int]
    ) -> tuple[npt.NDArray[np.float64], float]:
        """``describe`` of a text by its words and pairs of neighbours, in any order."""
        counts = Counter(map(self._column.get, chain(words, pairs)))
        counts.pop(None, None)  # the unknown ones
        distinct = set(words)
        novelty = len(distinct.difference(self._column)) / len(distinct) if distinct else 0.0
        if not counts:
            return np.zeros(self.n_components), novelty
        columns = np.fromiter(counts, dtype=np.int64, count=len(counts))
        weights = 1.0 + np.log(list(counts.values()))
        weights *= self._idf[columns]
        return weights @ self._directions[columns] / np.linalg.norm(weights), novelty

    def save(self, directory: Path) -> list[str]:
        """Write the sketch into ``directory``; the names of the files written."""
        write_json(directory / _VOCABULARY, list(self._terms))
        save_arrays(directory / _ARRAYS, {"idf": self._idf, "directions": self._directions})
        return list(SKETCH_FILES)

    @classmethod
    def load(cls, directory: Path) -> "TextSketch":
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing or damaged.
        """
        terms = read_json(directory / _VOCABULARY)
        if not isinstance(terms, list) or not (
            all(isinstance(term, str) for term in terms)
            or all(isinstance(term, int) for term in terms)
        ):
            raise DataError(f"{directory / _VOCABULARY} is not a list of terms: fit again.")
        arrays = load_arrays(directory / _ARRAYS, {"idf": np.float32, "directions": np.float32})
        return cls(terms, arrays["idf"], arrays["directions"])

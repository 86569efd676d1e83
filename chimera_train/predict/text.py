"""A text as a short vector: TF-IDF projected on the leading singular vectors of the training texts.

Fitting is scikit-learn's (``length.forests``); this module only evaluates what was fitted, so that
the gateway needs no scikit-learn. The sketch is one of the features of Chimera §3.4.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.files import read_json, write_json
from chimera_train.predict.arrays import load_arrays, save_arrays

__all__ = ["TOKEN_PATTERN", "TextSketch"]

#: Terms of a text, after lower-casing. Unlike scikit-learn's default it keeps one-character words:
#: in arithmetic the digits are the content.
TOKEN_PATTERN = r"(?u)\b\w+\b"  # noqa: S105

_VOCABULARY = "vocabulary.json"
_ARRAYS = "sketch.npz"


class TextSketch:
    """Evaluates a fitted ``TfidfVectorizer`` (l2 norm, natural tf) and ``TruncatedSVD``.

    Args:
        terms: the vocabulary, in the order of the columns.
        idf: inverse document frequency of each term, shape (n_terms,).
        components: right singular vectors as columns, shape (n_terms, k).

    Raises:
        DataError: the shapes do not agree or a number is not finite.
    """

    def __init__(
        self,
        terms: Sequence[str],
        idf: npt.NDArray[np.float64],
        components: npt.NDArray[np.float64],
    ) -> None:
        n_terms = len(terms)
        if idf.shape != (n_terms,) or components.ndim != 2 or len(components) != n_terms:
            raise DataError(
                f"The text sketch has {n_terms} terms but idf of shape {idf.shape} and components"
                f" of shape {components.shape}: fit again."
            )
        if not (np.isfinite(idf).all() and np.isfinite(components).all()):
            raise DataError("The text sketch has numbers that are not finite: fit again.")
        self._terms = list(terms)
        self._column = {term: column for column, term in enumerate(terms)}
        self._idf = idf
        self._components = components
        self._pattern = re.compile(TOKEN_PATTERN)

    @property
    def n_components(self) -> int:
        """Length k of a sketch."""
        return int(self._components.shape[1])

    def transform(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The sketch of each text, shape (n, k). A text without a known term is all zeros."""
        result = np.zeros((len(texts), self.n_components))
        for row, text in enumerate(texts):
            counts = Counter(self._pattern.findall(text.lower()))
            known = [(self._column[t], n) for t, n in counts.items() if t in self._column]
            if not known:
                continue
            columns, frequency = np.array(known).T
            weights = frequency * self._idf[columns]
            result[row] = (weights / np.linalg.norm(weights)) @ self._components[columns]
        return result

    def save(self, directory: Path) -> list[str]:
        """Write the sketch into ``directory``; the names of the files written."""
        write_json(directory / _VOCABULARY, self._terms)
        save_arrays(directory / _ARRAYS, {"idf": self._idf, "components": self._components})
        return [_VOCABULARY, _ARRAYS]

    @classmethod
    def load(cls, directory: Path) -> "TextSketch":
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing or damaged.
        """
        terms = read_json(directory / _VOCABULARY)
        if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
            raise DataError(f"{directory / _VOCABULARY} is not a list of terms: fit again.")
        arrays = load_arrays(directory / _ARRAYS, {"idf": np.float64, "components": np.float64})
        return cls(terms, arrays["idf"], arrays["components"])

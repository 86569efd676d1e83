"""A sketch of terms that only their keyed hashes are known of (``hashed_text``).

New texts come as they are and are hashed with the key of the training data, which is therefore one
of the files.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.files import write_text
from chimera_train.hashed_text import HashedText, HashKey, Text
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import (
    TEXT_COLUMNS,
    TEXT_VERSION,
    terms_of,
    text_columns,
)

__all__ = ["KEY_FILE", "HashedSketch", "hashed_text"]

KEY_FILE = "hash-key.txt"


def hashed_text(text: Text, key: HashKey) -> HashedText:
    """What may be kept of a text, or what was kept of it, which must fit the key and the version.

    Raises:
        DataError: it was hashed with another key, or by another version of chimera-train.
    """
    if isinstance(text, str):
        words, pairs = _hashed_terms(text, key)
        return HashedText(
            key=key.name,
            words=tuple(sorted(words)),
            pairs=tuple(sorted(pairs)),
            numbers=tuple(text_columns(text).tolist()),
            version=TEXT_VERSION,
        )
    if text.key != key.name:
        raise DataError(
            f"The traces' texts were hashed with the key '{text.key}', not with '{key.name}':"
            " give theirs with --hash-key-file."
        )
    if text.version != TEXT_VERSION or len(text.numbers) != len(TEXT_COLUMNS):
        raise DataError(
            "The traces' texts were hashed by another version of chimera-train: collect or import"
            " them again."
        )
    return text


def _hashed_terms(text: str, key: HashKey) -> tuple[list[int], list[int]]:
    """Hashes of the words and of the pairs of neighbours, in order."""
    words = terms_of(text)
    return key.hashed(words), key.hashed(map(" ".join, pairwise(words)))


class HashedSketch:
    """Evaluates a sketch whose terms are hashes.

    Args:
        terms: the sketch.
        key: of its hashes.
    """

    def __init__(self, terms: TextSketch, key: HashKey) -> None:
        self.terms = terms
        self.key = key

    @property
    def n_components(self) -> int:
        """Length k of a sketch."""
        return self.terms.n_components

    def describe(self, text: Text) -> tuple[npt.NDArray[np.float64], float]:
        """The sketch of a text, shape (k,), and its novelty, as of ``TextSketch``.

        Raises:
            DataError: as ``hashed_text``.
        """
        if isinstance(text, str):
            return self.terms.weigh(*_hashed_terms(text, self.key))
        kept = hashed_text(text, self.key)
        return self.terms.weigh(kept.words, kept.pairs)

    def save(self, directory: Path) -> list[str]:
        """Write the sketch and the key into ``directory``; the names of the files written."""
        write_text(directory / KEY_FILE, f"{self.key.secret.hex()}\n")
        return [*self.terms.save(directory), KEY_FILE]

    @classmethod
    def load(cls, directory: Path) -> "HashedSketch":
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing or damaged.
        """
        return cls(TextSketch.load(directory), HashKey.read(directory / KEY_FILE))

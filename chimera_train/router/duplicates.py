"""Questions that say nearly the same: they must not be on both sides of a split.

Two texts are near-duplicates where the Jaccard similarity of their sets of three consecutive words
is at least 0.8 (Broder 1997). Candidates are found by MinHash signatures cut into bands (locality
sensitive hashing): 20 bands of 6 values miss 0.2 % of the pairs at 0.8, fewer above. Each candidate
is then compared exactly, so that nothing below 0.8 is united.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["near_duplicate_groups"]

_LEAST_SIMILARITY = 0.8
_WORDS = 3
_BANDS, _ROWS = 20, 6
_SEED = 1  # of the hash functions
# What so many texts share is the template around the question, and says nothing about it.
_TEMPLATE_SHARE, _TEMPLATE_TEXTS = 0.1, 10

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: odd, its bits look random

Hashes = npt.NDArray[np.uint64]


def near_duplicate_groups(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The group of each text, shape (n,): the position of the first text of its group.

    A group is what chains of near-duplicates connect. Case, punctuation and white space do not
    count, and neither do words that more than a tenth of all texts have in common.
    """
    groups = _Groups(len(texts))
    words = [tuple(re.findall(r"\w+", text.lower())) for text in texts]
    first: dict[tuple[str, ...], int] = {}
    for position, of_text in enumerate(words):
        groups.unite(first.setdefault(of_text, position), position)
    distinct = list(first.values())
    shingles = _without_templates(_shingles([words[position] for position in distinct]))
    for i, j in _candidates(shingles):
        a, b = distinct[i], distinct[j]
        if groups.of(a) != groups.of(b) and _jaccard(shingles[i], shingles[j]) >= _LEAST_SIMILARITY:
            groups.unite(a, b)
    return np.array([groups.of(position) for position in range(len(texts))], dtype=np.int64)


def _shingles(words: Sequence[tuple[str, ...]]) -> list[Hashes]:
    """The distinct hashes of each text's runs of three words; of all of it where it is shorter."""
    numbers: dict[str, int] = {}
    result = []
    for of_text in words:
        known = [numbers.setdefault(word, len(numbers) + 1) for word in of_text]
        padded = np.array(known + [0] * (_WORDS - len(known)), dtype=np.uint64)
        runs = np.lib.stride_tricks.sliding_window_view(padded, _WORDS)
        hashed = np.zeros(len(runs), dtype=np.uint64)
        for column in runs.T:
            hashed = (hashed ^ column) * _MIX
            hashed ^= hashed >> np.uint64(29)
        result.append(np.unique(hashed))
    return result


def _without_templates(shingles: list[Hashes]) -> list[Hashes]:
    if not shingles:
        return shingles
    hashes, texts = np.unique(np.concatenate(shingles), return_counts=True)
    most = max(_TEMPLATE_TEXTS, _TEMPLATE_SHARE * len(shingles))
    template = hashes[texts > most]
    return [np.setdiff1d(own, template, assume_unique=True) for own in shingles]


def _candidates(shingles: Sequence[Hashes]) -> Iterator[tuple[int, int]]:
    """Pairs of texts that agree in a whole band of their signatures."""
    filled = np.flatnonzero([len(own) for own in shingles])
    if len(filled) < 2:
        return
    signatures = _signatures([shingles[i] for i in filled])
    for band in np.split(signatures, _BANDS, axis=1):
        _, bucket = np.unique(band, axis=0, return_inverse=True)
        order = np.argsort(bucket.ravel(), kind="stable")
        starts = np.flatnonzero(np.diff(bucket.ravel()[order], prepend=-1))
        for members in np.split(filled[order], starts[1:]):
            for position, i in enumerate(members):
                yield from ((int(i), int(j)) for j in members[position + 1 :])


def _signatures(shingles: Sequence[Hashes]) -> Hashes:
    """The least value of each hash function over each text's shingles, (n, bands · rows)."""
    rng = np.random.default_rng(_SEED)
    factors = rng.integers(0, 2**63, size=_BANDS * _ROWS, dtype=np.uint64) * 2 + 1
    offsets = rng.integers(0, 2**64, size=_BANDS * _ROWS, dtype=np.uint64)
    together = np.concatenate(shingles)
    starts = np.cumsum([0, *map(len, shingles[:-1])])
    columns = [
        np.minimum.reduceat((together * factor + offset) >> np.uint64(32), starts)
        for factor, offset in zip(factors, offsets, strict=True)
    ]
    return np.stack(columns, axis=1)


def _jaccard(a: Hashes, b: Hashes) -> float:
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


class _Groups:
    """Disjoint sets of positions, each named by its lowest (union-find)."""

    def __init__(self, n: int) -> None:
        self._parent = list(range(n))

    def of(self, position: int) -> int:
        while self._parent[position] != position:
            self._parent[position] = self._parent[self._parent[position]]
            position = self._parent[position]
        return position

    def unite(self, a: int, b: int) -> None:
        low, high = sorted((self.of(a), self.of(b)))
        self._parent[high] = low

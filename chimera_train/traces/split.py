"""Splits by question, so that no question is on both sides of a split.

The fold of a question is a hash of its id: it does not depend on which other questions were
collected, on row order or on a seed. Fold 0 is the holdout: nothing is ever fitted on it, so that
predictions on it, and simulations over it, are honest.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["HOLDOUT_FOLD", "N_FOLDS", "fingerprints", "fold", "folds", "hashed"]

N_FOLDS = 5
HOLDOUT_FOLD = 0


def fold(question_id: str) -> int:
    """The fold, 0 to ``N_FOLDS`` - 1, of one question."""
    return _hash(question_id, N_FOLDS)


def folds(question_ids: pd.Series) -> npt.NDArray[np.int64]:
    """The fold of every row, shape (n,)."""
    return question_ids.map(fold).to_numpy(dtype=np.int64)


def hashed(question_ids: pd.Series, purpose: str, parts: int) -> npt.NDArray[np.int64]:
    """A part of every row, 0 to ``parts`` - 1, independent of other purposes' and of the folds."""
    return question_ids.map(lambda name: _hash(f"{purpose}:{name}", parts)).to_numpy(dtype=np.int64)


def fingerprints(question_ids: pd.Series) -> npt.NDArray[np.uint32]:
    """Numbers that tell questions apart without naming them, shape (n,)."""
    return hashed(question_ids, "fingerprint", 2**32).astype(np.uint32)


def _hash(name: str, parts: int) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % parts

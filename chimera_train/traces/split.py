"""Splits by question, so that no question is on both sides of a split.

The fold of a question is a hash of its id: it does not depend on which other questions were
collected, on row order or on a seed. Fold 0 is the holdout: nothing is ever fitted on it, so that
predictions on it, and simulations over it, are honest.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["HOLDOUT_FOLD", "N_FOLDS", "fold", "folds"]

N_FOLDS = 5
HOLDOUT_FOLD = 0


def fold(question_id: str) -> int:
    """The fold, 0 to ``N_FOLDS`` - 1, of one question."""
    digest = hashlib.sha256(question_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") % N_FOLDS


def folds(question_ids: pd.Series) -> npt.NDArray[np.int64]:
    """The fold of every row, shape (n,)."""
    return question_ids.map(fold).to_numpy(dtype=np.int64)

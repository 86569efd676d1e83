"""Which questions a predictor was fitted on, so that it is not judged on them.

They are kept as fingerprints (``traces.split``), which tell questions apart without naming them.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimera_train.predict.arrays import load_arrays, save_arrays

__all__ = ["FITTED", "fitted_questions", "save_fitted"]

FITTED = "questions.npz"

Fingerprints = npt.NDArray[np.uint32]


def save_fitted(directory: Path, fingerprints: Fingerprints) -> None:
    """Write the fingerprints of the questions that what is in ``directory`` was fitted on."""
    save_arrays(directory / FITTED, {"fingerprints": np.unique(fingerprints)})


def fitted_questions(directory: Path) -> Fingerprints:
    """The fingerprints of the questions that what is in ``directory`` was fitted on.

    Raises:
        DataError: the file is missing or damaged.
    """
    return load_arrays(directory / FITTED, {"fingerprints": np.uint32})["fingerprints"]

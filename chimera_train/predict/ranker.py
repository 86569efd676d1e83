"""Ranking the requests of a model by their length: learning to rank, as vllm-ltr does.

A score says nothing by itself; of two requests of one model that of the lower score should be the
shorter. The directory is that of ``predict.length`` with target ``rank``, and small networks in
place of the forests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_arrays, save_arrays
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.length_files import load_verified

__all__ = ["Ranker", "Scorer"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scorer:
    """One hidden layer of rectified units on standardised features; all arrays float64.

    Attributes:
        mean, scale: of the features, shape (n_features,); the scale is positive.
        weights: of the hidden layer, shape (n_features, n_hidden).
        bias: its biases, shape (n_hidden,).
        output: weights of the score, shape (n_hidden,).
    """

    mean: Floats
    scale: Floats
    weights: Floats
    bias: Floats
    output: Floats

    def __call__(self, X: npt.NDArray[np.float32]) -> Floats:
        """Scores of the rows of ``X``, shape (n, n_features); shape (n,)."""
        hidden = (X - self.mean) / self.scale @ self.weights + self.bias
        scores: Floats = np.maximum(hidden, 0.0) @ self.output
        return scores

    def save(self, path: Path) -> None:
        """Write the arrays (``.npz``)."""
        save_arrays(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Scorer":
        """Read what ``save`` wrote.

        Raises:
            DataError: the file is missing or damaged, or its arrays do not fit each other.
        """
        names = cls.__dataclass_fields__
        scorer = cls(**load_arrays(path, dict.fromkeys(names, np.float64)))
        n_features, n_hidden = scorer.mean.size, scorer.bias.size
        shapes = [(n_features,), (n_features,), (n_features, n_hidden), (n_hidden,), (n_hidden,)]
        if [getattr(scorer, name).shape for name in names] != shapes:
            raise DataError(f"{path}: the arrays do not fit each other: fit again.")
        return scorer


class Ranker:
    """The scorers of every model.

    Args:
        features: how requests become rows.
        scorers: model name → scorer.

    Raises:
        DataError: a scorer wants other columns than ``features`` has.
    """

    def __init__(self, features: Features, scorers: Mapping[str, Scorer]) -> None:
        for model, scorer in scorers.items():
            if scorer.mean.size != features.n_features:
                raise DataError(
                    f"The scorer of '{model}' needs {scorer.mean.size} features, but there are"
                    f" {features.n_features}: fit again."
                )
        self.models = tuple(sorted(scorers))
        self.features = features
        self.scorers = dict(scorers)

    @classmethod
    def load(cls, directory: Path) -> "Ranker":
        """Read a directory written by ``chimera-train fit length --target rank``.

        Raises:
            DataError: as ``load_verified``.
        """
        manifest, features = load_verified(directory, "rank")
        scorers = {model: Scorer.load(directory / e.file) for model, e in manifest.models.items()}
        return cls(features, scorers)

    def predict(self, model: str, requests: Sequence[StageRequest]) -> Floats:
        """Scores, the lower the shorter, shape (n,).

        Raises:
            DataError: ``model`` has no scorer.
        """
        if model not in self.scorers:
            raise DataError(f"No scorer for model '{model}': there are {', '.join(self.models)}.")
        return self.scorers[model](self.features.rows(model, requests)[0])

"""The training questions of a router: which are like a text, and how the models did on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chimera_train.config import Settings, parse_settings
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, write_json
from chimera_train.predict.arrays import load_arrays, save_arrays
from chimera_train.predict.router_scorers import Floats, log_odds
from chimera_train.predict.text import TextSketch

__all__ = [
    "KNN",
    "NEIGHBOURS",
    "QUESTIONS",
    "Neighbour",
    "NeighbourScorer",
    "Neighbours",
    "Question",
    "load_questions",
    "save_questions",
]

NEIGHBOURS = "neighbours.npz"
QUESTIONS = "neighbours.json"
KNN = "knn.npz"


class Question(Settings):
    """A training question; ``text`` is its beginning, or None where texts are not kept."""

    question_id: str
    text: str | None


class _Questions(Settings):
    questions: list[Question] = Field(min_length=1)


def save_questions(directory: Path, questions: Sequence[Question]) -> None:
    """Write the training questions, in the order of the rows of ``Neighbours``."""
    write_json(directory / QUESTIONS, {"questions": [each.model_dump() for each in questions]})


def load_questions(directory: Path) -> list[Question]:
    """Read what ``save_questions`` wrote; raises DataError if it is damaged."""
    path = directory / QUESTIONS
    values = read_json(path)
    try:
        return parse_settings(values, _Questions, str(path)).questions
    except ConfigError as error:  # nobody edits this file: it is damaged data
        raise DataError(str(error)) from error


class Neighbour(NamedTuple):
    """A training question like a text: its row, and the cosine of the two, at most 1."""

    row: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Training questions as unit vectors in a sketch.

    Attributes:
        sketch: of texts, k numbers.
        vectors: of the questions, of length one, shape (n, k); zero where a text has no known term.
        success: success rates, shape (n, n_models); NaN: never graded.

    Raises:
        DataError: the arrays do not belong together, or have numbers that they must not have.
    """

    sketch: TextSketch
    vectors: npt.NDArray[np.float32]
    success: Floats

    def __post_init__(self) -> None:
        if (
            self.vectors.ndim != 2
            or self.success.ndim != 2
            or len(self.vectors) != len(self.success)
            or self.vectors.shape[1] != self.sketch.n_components
            or not np.isfinite(self.vectors).all()
            or not (np.isnan(self.success) | ((self.success >= 0) & (self.success <= 1))).all()
        ):
            raise DataError("The router's training questions contradict each other: fit again.")

    @classmethod
    def of(cls, sketch: TextSketch, texts: Sequence[str], success: Floats) -> "Neighbours":
        """The neighbours that ``texts`` are, with the models' success rates on them."""
        vectors = [_unit(sketch, text) for text in texts]
        return cls(sketch, np.array(vectors, dtype=np.float32), success)

    def similarities(self, text: str) -> npt.NDArray[np.float32]:
        """The cosine of the text with every question, shape (n,); zeros if it has no known term."""
        return self.vectors @ _unit(self.sketch, text)

    def nearest(self, text: str, n: int) -> list[Neighbour]:
        """The ``n`` questions most like a text, the nearest first; none if it has no known term."""
        similarities = self.similarities(text)
        if not similarities.any():
            return []
        order = np.argsort(-similarities, kind="stable")[:n]
        return [Neighbour(int(row), float(similarities[row])) for row in order]

    def save(self, directory: Path) -> None:
        """Write the vectors and rates; the sketch has its own files."""
        save_arrays(directory / NEIGHBOURS, {"vectors": self.vectors, "success": self.success})

    @classmethod
    def load(cls, directory: Path, sketch: TextSketch) -> "Neighbours":
        """Read what :meth:`save` wrote; raises DataError if it is damaged."""
        types: dict[str, type[np.generic]] = {"vectors": np.float32, "success": np.float64}
        arrays = load_arrays(directory / NEIGHBOURS, types)
        return cls(sketch, arrays["vectors"], arrays["success"])


def _unit(sketch: TextSketch, text: str) -> npt.NDArray[np.float32]:
    vector, _ = sketch.describe(text)
    norm = np.linalg.norm(vector)
    return (vector / norm if norm > 0 else vector).astype(np.float32)


class NeighbourScorer:
    """The mean success rate of the k most similar training questions.

    For each model those count that it was graded on, and one more question on which it did as well
    as on average: so rates stay between 0 and 1, and a text without a known term gets the average.

    Args:
        neighbours: the training questions.
        k: how many count.
        prior: mean success rates, shape (n_models,), strictly between 0 and 1.

    Raises:
        DataError: the numbers do not belong together.
    """

    def __init__(self, neighbours: Neighbours, k: int, prior: Floats) -> None:
        n_models = neighbours.success.shape[1]
        if k < 1 or prior.shape != (n_models,) or not ((prior > 0) & (prior < 1)).all():
            raise DataError("The router's neighbours do not fit their prior: fit again.")
        self._neighbours, self._k, self._prior = neighbours, k, prior
        known = ~np.isnan(neighbours.success)
        # Rows with a rate, once for all models where every question was graded on every model.
        self._rows = (
            [np.arange(len(known))]
            if known.all()
            else [np.flatnonzero(known[:, m]) for m in range(n_models)]
        )

    @property
    def n_outputs(self) -> int:
        return len(self._prior)

    def logits(self, texts: Sequence[str]) -> Floats:
        result = np.empty((len(texts), self.n_outputs))
        for each, text in zip(result, texts, strict=True):
            each[:] = log_odds(self._rates(self._neighbours.similarities(text)))
        return result

    def _rates(self, similarities: npt.NDArray[np.float32]) -> Floats:
        if not similarities.any():
            return self._prior
        success = self._neighbours.success
        if len(self._rows) == 1:
            nearest = self._nearest(similarities, self._rows[0])
            return (success[nearest].sum(axis=0) + self._prior) / (len(nearest) + 1)
        rates = np.empty(self.n_outputs)
        for m, rows in enumerate(self._rows):
            nearest = self._nearest(similarities, rows)
            rates[m] = (success[nearest, m].sum() + self._prior[m]) / (len(nearest) + 1)
        return rates

    def _nearest(
        self, similarities: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        if len(rows) <= self._k:
            return rows
        return rows[np.argpartition(-similarities[rows], self._k - 1)[: self._k]]

    def save(self, directory: Path) -> None:
        """Write k and the prior; the training questions have their own file."""
        save_arrays(directory / KNN, {"k": np.array(self._k), "prior": self._prior})

    @classmethod
    def load(cls, directory: Path, sketch: TextSketch) -> "NeighbourScorer":
        """Read what :meth:`save` wrote; raises DataError if it is damaged."""
        arrays = load_arrays(directory / KNN, {"k": np.int64, "prior": np.float64})
        if arrays["k"].ndim:
            raise DataError(f"{directory / KNN}: 'k' is not a number: fit again.")
        return cls(Neighbours.load(directory, sketch), int(arrays["k"]), arrays["prior"])

"""A text as a short vector: the embedding of a sentence encoder, centred and projected.

Exporting the encoder and fitting the projection is left to ``length.encoder``; this module only
evaluates both, so that the gateway needs no torch. Beside its terms the embedding takes the place
of ``predict.text`` among the features of Chimera §3.4.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_arrays, save_arrays
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_network import TextNetwork

__all__ = ["NETWORK", "TOKENIZER", "Embedder", "Encoder", "EncoderSketch", "JointSketch"]

NETWORK = "encoder.onnx"
TOKENIZER = "encoder-tokenizer.json"
_ARRAYS = "encoder.npz"


class Embedder(Protocol):
    """What turns texts into vectors.

    Attributes:
        dim: length of a vector.
        max_length: tokens, special ones included, after which a text is cut off.
    """

    dim: int
    max_length: int

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The vector of each text, shape (n, dim)."""

    def save(self, directory: Path) -> list[str]:
        """Write what :class:`Encoder` reads into ``directory``; the names of the files written."""


class Encoder:
    """The exported network, which pools and normalises, and its tokenizer.

    Args:
        directory: holds both; :meth:`save` reads them again.
        max_length: tokens, special ones included, after which a text is cut off.

    Raises:
        DataError: a file is missing or damaged.
    """

    dim: int
    max_length: int

    def __init__(self, directory: Path, *, max_length: int) -> None:
        self._directory = directory
        self._network = TextNetwork(
            directory / NETWORK, directory / TOKENIZER, max_length=max_length
        )
        self.dim = self._network.n_outputs
        self.max_length = max_length

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The embedding of each text, of length one, shape (n, dim)."""
        return self._network.run(texts)

    def save(self, directory: Path) -> list[str]:
        """Copy both files into ``directory``; their names."""
        for name in (NETWORK, TOKENIZER):
            shutil.copyfile(self._directory / name, directory / name)
        return [NETWORK, TOKENIZER]


class EncoderSketch:
    """Linear functions of the embedding of a text.

    Args:
        encoder: embeds the texts.
        mean: subtracted from an embedding, shape (dim,).
        projection: one function a column, shape (dim, k).

    Raises:
        DataError: the shapes do not agree or a number is not finite.
    """

    def __init__(
        self,
        encoder: Embedder,
        mean: npt.NDArray[np.float64],
        projection: npt.NDArray[np.float64],
    ) -> None:
        if mean.shape != (encoder.dim,) or projection.ndim != 2 or len(projection) != encoder.dim:
            raise DataError(
                f"The encoder gives {encoder.dim} numbers a text but the sketch has a mean of shape"
                f" {mean.shape} and a projection of shape {projection.shape}: fit again."
            )
        if not (np.isfinite(mean).all() and np.isfinite(projection).all()):
            raise DataError("The encoder sketch has numbers that are not finite: fit again.")
        self.encoder = encoder
        self.mean = mean
        self.projection = projection

    @property
    def n_components(self) -> int:
        """Length k of a sketch."""
        return int(self.projection.shape[1])

    def describe(self, text: str) -> tuple[npt.NDArray[np.float64], float]:
        """The sketch of a text, shape (k,), and how far its embedding is from the mean."""
        centred = self.encoder.embed([text])[0] - self.mean
        return centred @ self.projection, float(np.linalg.norm(centred))

    def save(self, directory: Path) -> list[str]:
        """Write the sketch and its encoder into ``directory``; the names of the files written."""
        arrays = {
            "mean": self.mean,
            "projection": self.projection,
            "max_length": np.array(self.encoder.max_length, dtype=np.int64),
        }
        save_arrays(directory / _ARRAYS, arrays)
        return [*self.encoder.save(directory), _ARRAYS]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing or damaged, or they do not belong together.
        """
        arrays = load_arrays(
            directory / _ARRAYS,
            {"mean": np.float64, "projection": np.float64, "max_length": np.int64},
        )
        max_length = arrays["max_length"]
        if max_length.shape != () or max_length < 1:
            raise DataError(f"{directory / _ARRAYS}: 'max_length' is not a count: fit again.")
        encoder = Encoder(directory, max_length=int(max_length))
        return cls(encoder, arrays["mean"], arrays["projection"])


class JointSketch:
    """Linear functions of a text's terms and of its embedding together.

    Args:
        terms: its vectors are added to those of ``embedding``, and so are as long.
        embedding: tells the novelty.

    Raises:
        DataError: the two are of different length.
    """

    def __init__(self, terms: TextSketch, embedding: EncoderSketch) -> None:
        if terms.n_components != embedding.n_components:
            raise DataError(
                f"The sketch has {terms.n_components} functions of the terms but"
                f" {embedding.n_components} of the embedding: fit again."
            )
        self.terms = terms
        self.embedding = embedding

    @property
    def n_components(self) -> int:
        """Length k of a sketch."""
        return self.embedding.n_components

    def describe(self, text: str) -> tuple[npt.NDArray[np.float64], float]:
        """The sketch of a text, shape (k,), and how far its embedding is from the mean."""
        vector, novelty = self.embedding.describe(text)
        return vector + self.terms.describe(text)[0], novelty

    def save(self, directory: Path) -> list[str]:
        """Write both into ``directory``; the names of the files written."""
        return [*self.terms.save(directory), *self.embedding.save(directory)]

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            DataError: a file is missing or damaged, or they do not belong together.
        """
        return cls(TextSketch.load(directory), EncoderSketch.load(directory))

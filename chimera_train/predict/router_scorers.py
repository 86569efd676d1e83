"""What a router can be: a function from texts to one logit for each model.

Each kind is fitted by a module of ``chimera_train.router`` and evaluated here with NumPy, compiled
trees or ONNX Runtime. What a scorer says is not calibrated yet: ``predict.router`` does that.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chimera_train.config import Settings
from chimera_train.errors import DataError
from chimera_train.predict.arrays import load_arrays, save_arrays
from chimera_train.predict.text import TextSketch
from chimera_train.predict.text_columns import TEXT_COLUMNS, text_columns
from chimera_train.predict.text_network import TextNetwork
from chimera_train.predict.trees import TreeSums

__all__ = [
    "BOOSTED",
    "NETWORKS",
    "PRIOR",
    "TERMS",
    "TOKENIZER",
    "BlendScorer",
    "BoostedScorer",
    "NetworkScorer",
    "NetworkSettings",
    "Precision",
    "PriorScorer",
    "Scorer",
    "TermScorer",
    "log_odds",
]

Floats = npt.NDArray[np.float64]
Precision = Literal["fp32", "int8"]

TOKENIZER = "tokenizer.json"
NETWORKS: dict[Precision, str] = {"fp32": "model.onnx", "int8": "model.int8.onnx"}
TERMS = "terms.npz"
BOOSTED = "boosted.npz"
PRIOR = "prior.npz"


class Scorer(Protocol):
    """A kind of router, without its calibration.

    Attributes:
        n_outputs: how many logits a text gets.
    """

    @property
    def n_outputs(self) -> int: ...

    def logits(self, texts: Sequence[str]) -> Floats:
        """Shape (len(texts), n_outputs), all finite."""
        ...

    def save(self, directory: Path) -> None:
        """Write the files of this kind into ``directory``."""
        ...


def log_odds(p: npt.ArrayLike) -> Floats:
    """The logits of probabilities strictly between 0 and 1."""
    p = np.asarray(p, dtype=np.float64)
    return np.log(p) - np.log1p(-p)


class PriorScorer:
    """Each model's success rate, whatever the text.

    Args:
        logits: of the rates, shape (n_models,).

    Raises:
        DataError: they are not a row of finite numbers.
    """

    def __init__(self, logits: Floats) -> None:
        if logits.ndim != 1 or not np.isfinite(logits).all():
            raise DataError("The prior is not a row of finite numbers: fit again.")
        self._logits = logits

    @property
    def n_outputs(self) -> int:
        return len(self._logits)

    def logits(self, texts: Sequence[str]) -> Floats:
        return np.tile(self._logits, (len(texts), 1))

    def save(self, directory: Path) -> None:
        save_arrays(directory / PRIOR, {"logits": self._logits})

    @classmethod
    def load(cls, directory: Path) -> "PriorScorer":
        """Read what :meth:`save` wrote; raises DataError if it is damaged."""
        return cls(load_arrays(directory / PRIOR, {"logits": np.float64})["logits"])


class TermScorer:
    """Logistic regressions on TF-IDF: a weight for every word and pair of words.

    Args:
        sketch: the terms; its own directions are not used.
        coefficients: a column for each model, shape (n_terms, n_models).
        intercepts: shape (n_models,).

    Raises:
        DataError: the shapes do not agree or a number is not finite.
    """

    def __init__(
        self, sketch: TextSketch, coefficients: npt.NDArray[np.float32], intercepts: Floats
    ) -> None:
        self._scores = sketch.along(coefficients)
        if intercepts.shape != (self._scores.n_components,) or not np.isfinite(intercepts).all():
            raise DataError("The term weights do not fit their intercepts: fit again.")
        self._coefficients, self._intercepts = coefficients, intercepts

    @property
    def n_outputs(self) -> int:
        return len(self._intercepts)

    def logits(self, texts: Sequence[str]) -> Floats:
        scores = [self._scores.describe(text)[0] for text in texts]
        return np.reshape(scores, (len(texts), self.n_outputs)) + self._intercepts

    def save(self, directory: Path) -> None:
        save_arrays(
            directory / TERMS,
            {"coefficients": self._coefficients, "intercepts": self._intercepts},
        )

    @classmethod
    def load(cls, directory: Path, sketch: TextSketch) -> "TermScorer":
        """Read what :meth:`save` wrote; raises DataError if it is damaged."""
        types: dict[str, type[np.generic]] = {"coefficients": np.float32, "intercepts": np.float64}
        arrays = load_arrays(directory / TERMS, types)
        return cls(sketch, arrays["coefficients"], arrays["intercepts"])


class BoostedScorer:
    """Boosted trees on numbers counted in the text (``predict.text_columns``) and on its sketch.

    Args:
        sketch: of the text.
        trees: a sum for each model.

    Raises:
        DataError: the trees test columns that there are not.
    """

    def __init__(self, sketch: TextSketch, trees: TreeSums) -> None:
        n_features = len(TEXT_COLUMNS) + sketch.n_components
        if trees.min_features > n_features:
            raise DataError(
                f"The router's trees need {trees.min_features} features, but there are"
                f" {n_features}: fit again."
            )
        self._sketch, self._trees = sketch, trees

    @property
    def n_outputs(self) -> int:
        return self._trees.n_sums

    @staticmethod
    def features(sketch: TextSketch, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """What the trees see: text columns, then sketch, shape (len(texts), n_features)."""
        X = np.empty((len(texts), len(TEXT_COLUMNS) + sketch.n_components), dtype=np.float32)
        for row, text in zip(X, texts, strict=True):
            row[: len(TEXT_COLUMNS)] = text_columns(text)
            row[len(TEXT_COLUMNS) :] = sketch.describe(text)[0]
        return X

    def logits(self, texts: Sequence[str]) -> Floats:
        return self._trees.sums(self.features(self._sketch, texts))

    def save(self, directory: Path) -> None:
        self._trees.save(directory / BOOSTED)

    @classmethod
    def load(cls, directory: Path, sketch: TextSketch) -> "BoostedScorer":
        """Read what :meth:`save` wrote; raises DataError if it is damaged."""
        return cls(sketch, TreeSums.load(directory / BOOSTED))


class BlendScorer:
    """The mean of the logits of several scorers.

    Args:
        scorers: of the same models; each has files of its own.

    Raises:
        DataError: they give different numbers of logits.
    """

    def __init__(self, scorers: Sequence[Scorer]) -> None:
        if len({scorer.n_outputs for scorer in scorers}) != 1:
            raise DataError("The router's parts are of different numbers of models: fit again.")
        self._scorers = scorers

    @property
    def n_outputs(self) -> int:
        return self._scorers[0].n_outputs

    def logits(self, texts: Sequence[str]) -> Floats:
        return np.mean([scorer.logits(texts) for scorer in self._scorers], axis=0)

    def save(self, directory: Path) -> None:
        for scorer in self._scorers:
            scorer.save(directory)


class NetworkSettings(Settings):
    """What is needed of a fine-tuned encoder beside its files.

    Attributes:
        encoder: what was fine-tuned.
        max_length: tokens, special ones included, that are read of a text.
        tail_share: share of them that is taken from the end of a longer text.
        precision: which of the two networks is used.
    """

    encoder: str
    max_length: int = Field(gt=0)
    tail_share: float = Field(default=0.0, ge=0, le=1)
    precision: Precision


class NetworkScorer:
    """A fine-tuned encoder, exported as ONNX (Chimera §3.3).

    Args:
        directory: holds the networks and the tokenizer.
        settings: how they are used.
        threads: CPU threads of one call.

    Raises:
        DataError: a file is not what it should be.
    """

    def __init__(self, directory: Path, settings: NetworkSettings, *, threads: int = 1) -> None:
        self.directory, self.settings = directory, settings
        self._network = TextNetwork(
            directory / NETWORKS[settings.precision],
            directory / TOKENIZER,
            max_length=settings.max_length,
            tail_share=settings.tail_share,
            threads=threads,
        )

    @property
    def n_outputs(self) -> int:
        return self._network.n_outputs

    def logits(self, texts: Sequence[str]) -> Floats:
        return self._network.run(texts)

    def save(self, directory: Path) -> None:
        """Copy the networks and the tokenizer into ``directory``."""
        for name in (*NETWORKS.values(), TOKENIZER):
            shutil.copyfile(self.directory / name, directory / name)

"""Predicting the remaining output length of a program from each of its stages (Chimera §3.4).

A length directory holds ``length.json`` (the manifest, written last), one ``.npz`` of forest arrays
per model and, unless the traces held no text, the text sketch. Everything is checked when loaded.
The same forests can predict a stage's own tokens instead; the manifest tells their target.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chimera_train.config import Settings, load_manifest
from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.forest import ForestArrays
from chimera_train.predict.text import TextSketch

__all__ = [
    "MANIFEST",
    "SCHEMA_VERSION",
    "LengthManifest",
    "LengthPredictor",
    "ModelEntry",
    "StageRequest",
    "Target",
    "load_verified",
    "read_manifest",
]

MANIFEST = "length.json"
SCHEMA_VERSION = 1

Target = Literal["remaining", "stage", "rank"]
"""The program's tokens from a stage on, the stage's own, or an order of the latter."""

_MEANING: dict[Target, str] = {
    "remaining": "the tokens that a program still generates",
    "stage": "the tokens of single stages",
    "rank": "an order of single stages",
}


class ModelEntry(Settings):
    """One model's forest and the constant tokens its chat template adds to a prompt."""

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.npz$")
    template_overhead_tokens: int
    rows: int = Field(gt=0)  # stages it was fitted on


class LengthManifest(Settings):
    """``length.json``. ``sha256`` covers every other file that the predictor reads."""

    schema_version: int
    target: Target = "remaining"
    models: dict[str, ModelEntry] = Field(min_length=1)
    workflows: list[str]
    stages: list[str]
    quantiles: list[float]  # those that were judged; any other can be asked for
    has_text: bool
    settings: dict[str, Any]
    metrics: dict[str, Any]
    sha256: dict[str, str]


def read_manifest(directory: Path) -> LengthManifest:
    """Read the manifest of a length directory, not the files it names.

    Raises:
        DataError: it is missing or damaged, or of a newer schema than this version's.
    """
    return load_manifest(directory / MANIFEST, LengthManifest, SCHEMA_VERSION)


def load_verified(directory: Path, target: Target) -> tuple[LengthManifest, Features]:
    """The manifest and the features of a directory that predicts ``target``.

    Every file that the manifest names is as it was written.

    Raises:
        DataError: it predicts something else, a file is missing or altered, or as
            ``read_manifest``.
    """
    manifest = read_manifest(directory)
    if manifest.target != target:
        raise DataError(
            f"{directory} predicts {_MEANING[manifest.target]} (target '{manifest.target}'), but"
            f" {_MEANING[target]} (target '{target}') are needed here: give a directory of"
            f" 'fit length --target {target}'."
        )
    for name, expected in manifest.sha256.items():
        if Path(name).name != name or not (directory / name).is_file():
            raise DataError(f"{directory} lacks '{name}', which {MANIFEST} names: fit again.")
        if sha256(directory / name) != expected:
            raise DataError(f"{directory / name} was altered after it was written: fit again.")
    sketch = TextSketch.load(directory) if manifest.has_text else None
    return manifest, Features(manifest.workflows, manifest.stages, sketch)


class LengthPredictor:
    """The forests of every model.

    Args:
        features: how requests become rows.
        forests: model name → forest.
        overheads: model name → tokens that its chat template adds to system + user tokens.

    Raises:
        DataError: a forest tests a column that ``features`` does not have.
    """

    def __init__(
        self,
        features: Features,
        forests: Mapping[str, ForestArrays],
        overheads: Mapping[str, int],
    ) -> None:
        for model, forest in forests.items():
            if forest.min_features > features.n_features:
                raise DataError(
                    f"The length forest of '{model}' needs {forest.min_features} features, but"
                    f" there are {features.n_features}: fit again."
                )
        self.models = tuple(sorted(forests))
        self.features = features
        self.forests = dict(forests)
        self._overheads = dict(overheads)

    @classmethod
    def load(
        cls, directory: Path, target: Literal["remaining", "stage"] = "remaining"
    ) -> "LengthPredictor":
        """Read a directory written by ``chimera-train fit length``.

        Raises:
            DataError: a file is missing or altered, the schema is newer than this version's, or the
                forests predict something else than ``target``.
        """
        manifest, features = load_verified(directory, target)
        return cls(
            features,
            {model: ForestArrays.load(directory / e.file) for model, e in manifest.models.items()},
            {model: e.template_overhead_tokens for model, e in manifest.models.items()},
        )

    def template_overhead_tokens(self, model: str) -> int:
        """Tokens that ``model``'s chat template adds: median of prompt − system − user."""
        self._forest(model)
        return self._overheads[model]

    def predict(
        self, model: str, requests: Sequence[StageRequest], quantiles: Sequence[float] = (0.5,)
    ) -> npt.NDArray[np.float64]:
        """Quantiles of the tokens the program still generates, the stage itself included.

        With target ``stage``, of the stage's tokens alone. The conditional median is ŷ. A workflow
        or stage that was not in the training traces is predicted from its token counts and text
        alone. Shape (n, len(quantiles)), tokens.

        Raises:
            DataError: ``model`` has no forest.
        """
        return self._forest(model).quantiles(self.features.rows(requests), quantiles)

    def remaining_after(
        self, model: str, requests: Sequence[StageRequest], generated: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        """Median of ``Y − g`` given ``Y > g``, where g tokens of the stage are already generated.

        Conditioning, instead of flooring ŷ − g at one token, keeps a request that outlives ŷ from
        looking almost done. Where no target in the request's leaves exceeds g, all training rows of
        the model stand in; a request longer than every one of those is expected to double, as under
        a Pareto tail of index one, whose median excess over g is g. Shape (n,), tokens.

        Raises:
            DataError: ``model`` has no forest.
        """
        g = np.asarray(generated, dtype=np.float64)
        forest = self._forest(model)
        median = forest.quantiles_above(self.features.rows(requests), (0.5,), g)[:, 0]
        return np.where(np.isnan(median), g, median - g)

    def _forest(self, model: str) -> ForestArrays:
        try:
            return self.forests[model]
        except KeyError:
            raise DataError(
                f"No length forest for model '{model}': there are {', '.join(self.models)}."
            ) from None

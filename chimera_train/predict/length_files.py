"""The manifest of a length directory, and loading what it names."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from chimera_train.config import Settings, load_manifest
from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.predict.boosted import BoostedArrays
from chimera_train.predict.features import FEATURES_VERSION, Features, Sketch
from chimera_train.predict.forest import ForestArrays
from chimera_train.predict.hashed_sketch import HashedSketch
from chimera_train.predict.outside import Bounds
from chimera_train.predict.text import TextSketch

__all__ = [
    "MANIFEST",
    "SCHEMA_VERSION",
    "EstimatorKind",
    "FeatureList",
    "LengthManifest",
    "ModelEntry",
    "SketchKind",
    "Target",
    "load_estimator",
    "load_verified",
    "read_manifest",
]

MANIFEST = "length.json"
SCHEMA_VERSION = 2

Target = Literal["remaining", "stage", "rank"]
"""The program's tokens from a stage on, the stage's own, or an order of the latter."""

EstimatorKind = Literal["forest", "boosted"]
SketchKind = Literal["tfidf_svd", "encoder"]

_MEANING: dict[Target, str] = {
    "remaining": "the tokens that a program still generates",
    "stage": "the tokens of single stages",
    "rank": "an order of single stages",
}


class ModelEntry(Settings):
    """One model's estimator, and what is known of the model besides.

    Attributes:
        file: arrays of the estimator; models that share one name the same.
        template_overhead_tokens: constant tokens that its chat template adds to a prompt.
        rows: stages that were fitted.
        bounds: what they cover; None for a ranker.
    """

    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\.npz$")
    template_overhead_tokens: int
    rows: int = Field(gt=0)
    bounds: Bounds | None = None


class FeatureList(Settings):
    """The columns that the estimators were fitted on, in order."""

    version: int
    columns: list[str]


class LengthManifest(Settings):
    """``length.json``. ``sha256`` covers every other file that the predictor reads."""

    schema_version: int
    target: Target
    estimator: EstimatorKind
    sketch: SketchKind | Literal["hashed"] | None
    pooled: bool
    models: dict[str, ModelEntry] = Field(min_length=1)
    workflows: list[str]
    stages: list[str]
    features: FeatureList
    quantiles: list[float]  # those that were judged; any other can be asked for
    settings: dict[str, Any]
    metrics: dict[str, Any]
    sha256: dict[str, str]


def read_manifest(directory: Path) -> LengthManifest:
    """Read the manifest of a length directory, not the files it names.

    Raises:
        DataError: it is missing or damaged, or of another schema than this version's.
    """
    return load_manifest(directory / MANIFEST, LengthManifest, SCHEMA_VERSION)


def load_verified(directory: Path, target: Target) -> tuple[LengthManifest, Features]:
    """The manifest and the features of a directory that predicts ``target``.

    Every file that the manifest names is as it was written.

    Raises:
        DataError: it predicts something else, a file is missing or altered, its features are not
            those that this version computes, or as ``read_manifest``.
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
    features = Features(
        manifest.workflows,
        manifest.stages,
        sorted(manifest.models),
        _load_sketch(directory, manifest.sketch),
        pooled=manifest.pooled,
    )
    _check_features(directory, manifest.features, features)
    return manifest, features


def load_estimator(path: Path, kind: EstimatorKind) -> ForestArrays | BoostedArrays:
    """Read the arrays of an estimator.

    Raises:
        DataError: they are missing or damaged.
    """
    return BoostedArrays.load(path) if kind == "boosted" else ForestArrays.load(path)


def _load_sketch(directory: Path, kind: str | None) -> Sketch | None:
    if kind == "encoder":
        from chimera_train.predict.encoder import JointSketch  # only where it is used

        return JointSketch.load(directory)
    if kind == "hashed":
        return HashedSketch.load(directory)
    return None if kind is None else TextSketch.load(directory)


def _check_features(directory: Path, stored: FeatureList, ours: Features) -> None:
    if stored.version != FEATURES_VERSION:
        remedy = "fit again" if stored.version < FEATURES_VERSION else "update chimera-train"
        raise DataError(
            f"{directory} was fitted on version {stored.version} of the features, and this version"
            f" of chimera-train computes {FEATURES_VERSION}: {remedy}."
        )
    if tuple(stored.columns) != ours.columns:
        odd = sorted(set(stored.columns) ^ set(ours.columns)) or ["another order"]
        raise DataError(
            f"{directory} was fitted on other features than this version computes ({odd[0]}): fit"
            " again."
        )

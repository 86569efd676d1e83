"""The semantic router at run time: success probabilities of every model for a text (Chimera §3.3).

A router is a scorer of one of several kinds (``predict.router_scorers``) behind a calibration per
model (``predict.calibration``). Neither torch, transformers, scikit-learn nor LightGBM is needed.
"""

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, model_validator

from chimera_train.config import Settings, load_manifest
from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.predict.calibration import Calibration, Label
from chimera_train.predict.router_neighbours import KNN, NEIGHBOURS, NeighbourScorer
from chimera_train.predict.router_scorers import (
    BOOSTED,
    NETWORKS,
    PRIOR,
    TERMS,
    TOKENIZER,
    BlendScorer,
    BoostedScorer,
    Floats,
    NetworkScorer,
    NetworkSettings,
    PriorScorer,
    Scorer,
    TermScorer,
)
from chimera_train.predict.router_text import Reads
from chimera_train.predict.text import SKETCH_FILES, TextSketch

__all__ = [
    "KINDS",
    "MANIFEST",
    "SCHEMA_VERSION",
    "Kind",
    "Router",
    "RouterManifest",
    "confidences",
    "files_of",
    "load_router",
    "read_manifest",
    "verify_files",
    "warn_of_unknown",
]

SCHEMA_VERSION = 2
MANIFEST = "router.json"

Kind = Literal["prior", "tfidf_logreg", "knn", "boosted", "blend", "encoder"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_REMEMBERED_TEXTS = 4096

_log = logging.getLogger(__name__)


class RouterManifest(Settings):
    """``router.json``.

    Attributes:
        kind: of scorer.
        labels: the model of each column and its calibration.
        network: how the networks are used; of kind ``encoder`` only.
        reads: what of a prompt the texts are made of; see ``router_text``.
        latency_ms: mean program latency of each model in training; None: not measured.
        sha256: of every other file.
        metrics: as ``fit router`` printed them.
    """

    schema_version: int
    kind: Kind
    labels: list[Label] = Field(min_length=1)
    network: NetworkSettings | None = None
    reads: Reads = "user"
    latency_ms: dict[str, FiniteFloat | None]
    sha256: dict[str, str]
    metrics: dict[str, Any]

    @model_validator(mode="after")
    def _a_network_for_an_encoder(self) -> Self:
        if (self.kind == "encoder") != (self.network is not None):
            raise ValueError("'network' belongs to kind 'encoder'")
        return self


class Router:
    """Confidences q[m] for texts; safe to share by threads.

    Args:
        scorer: gives the logits.
        calibration: of each of its outputs.
        reads: what of a prompt the texts are made of; see ``router_text``.
        remembered_texts: most texts whose logits are kept, the latest.

    Raises:
        DataError: there are more outputs or fewer than calibrations.
    """

    models: tuple[str, ...]

    def __init__(
        self,
        scorer: Scorer,
        calibration: Calibration,
        *,
        reads: Reads = "user",
        remembered_texts: int = _REMEMBERED_TEXTS,
    ) -> None:
        self.scorer, self.calibration, self.models = scorer, calibration, calibration.models
        self.reads = reads
        if scorer.n_outputs != len(self.models):
            raise DataError(
                f"The router has {scorer.n_outputs} outputs for {len(self.models)} label(s):"
                " fit it again."
            )
        self._most = remembered_texts
        self._lock = threading.Lock()
        self._remembered: OrderedDict[bytes, Floats] = OrderedDict()

    def with_calibration(self, calibration: Calibration) -> Self:
        """The same behind another calibration; it remembers the same texts."""
        other = type(self)(self.scorer, calibration, reads=self.reads, remembered_texts=self._most)
        with self._lock:
            other._remembered.update(self._remembered)
        return other

    def predict(self, texts: Sequence[str]) -> Floats:
        """Calibrated success probability of every model, shape (len(texts), n_models)."""
        return self.calibration.apply(self.logits(texts))

    def logits(self, texts: Sequence[str]) -> Floats:
        """Uncalibrated logits, shape (len(texts), n_models)."""
        # A text may be of megabytes; its hash is not.
        keys = [
            hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            for text in texts
        ]
        with self._lock:
            found = {key: self._remembered[key] for key in keys if key in self._remembered}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        if new:
            found |= zip(new, self.scorer.logits(list(new.values())), strict=True)
        with self._lock:
            for key in keys:
                self._remembered[key] = found[key]
                self._remembered.move_to_end(key)
            while len(self._remembered) > self._most:
                self._remembered.popitem(last=False)
        return np.array([found[key] for key in keys]).reshape(len(texts), len(self.models))


def load_router(directory: Path, threads: int = 1) -> Router:
    """Load what ``fit router`` wrote.

    Args:
        directory: of the router.
        threads: CPU threads of one call.

    Raises:
        DataError: a file is missing, altered or malformed, or of another schema.
    """
    manifest = read_manifest(directory)
    verify_files(directory, manifest, files_of(manifest))
    try:
        return Router(
            _load_scorer(directory, manifest, threads),
            Calibration(manifest.labels),
            reads=manifest.reads,
        )
    except DataError as error:
        raise DataError(f"{directory}: {error}") from error


def read_manifest(directory: Path) -> RouterManifest:
    """Read the manifest of a router's directory, not the files it names.

    Raises:
        DataError: it is missing or damaged, or of another schema than this version's.
    """
    return load_manifest(directory / MANIFEST, RouterManifest, SCHEMA_VERSION)


def files_of(manifest: RouterManifest) -> list[str]:
    """The files beside the manifest that the router runs with."""
    if manifest.network is not None:
        return [NETWORKS[manifest.network.precision], TOKENIZER]
    return {
        "prior": [PRIOR],
        "tfidf_logreg": [*SKETCH_FILES, TERMS],
        "knn": [*SKETCH_FILES, NEIGHBOURS, KNN],
        "boosted": [*SKETCH_FILES, BOOSTED],
        "blend": [*SKETCH_FILES, TERMS, BOOSTED],
    }[manifest.kind]


def verify_files(directory: Path, manifest: RouterManifest, names: Sequence[str]) -> None:
    """Check that files are those that the manifest describes.

    Raises:
        DataError: one is missing or altered.
    """
    for name in names:
        if sha256(directory / name) != manifest.sha256.get(name):
            raise DataError(
                f"{directory / name} is not the file that {directory / MANIFEST} describes: fit it"
                " again."
            )


def _load_scorer(directory: Path, manifest: RouterManifest, threads: int) -> Scorer:
    if manifest.network is not None:
        return NetworkScorer(directory, manifest.network, threads=threads)
    if manifest.kind == "prior":
        return PriorScorer.load(directory)
    sketch = TextSketch.load(directory)
    if manifest.kind == "knn":
        return NeighbourScorer.load(directory, sketch)
    if manifest.kind == "tfidf_logreg":
        return TermScorer.load(directory, sketch)
    if manifest.kind == "boosted":
        return BoostedScorer.load(directory, sketch)
    return BlendScorer([TermScorer.load(directory, sketch), BoostedScorer.load(directory, sketch)])


class _Predicts(Protocol):
    @property
    def models(self) -> Sequence[str]: ...

    def predict(self, texts: Sequence[str]) -> npt.NDArray[np.floating[Any]]: ...


def confidences(router: _Predicts, models: Sequence[str], texts: Sequence[str]) -> Floats:
    """The confidences in ``models``, in their order, shape (len(texts), len(models)).

    A model that the router was not fitted on gets the mean over those that it was: how hard a
    question is for others says something, and nothing else is known.
    """
    known = list(router.models)
    q = np.asarray(router.predict(texts), dtype=np.float64)
    mean = q.mean(axis=1)
    columns = [q[:, known.index(model)] if model in known else mean for model in models]
    return np.stack(columns, axis=1)


def warn_of_unknown(router: _Predicts, models: Sequence[str]) -> None:
    """Log a warning that names those of ``models`` that the router was not fitted on, if any."""
    unknown = [model for model in dict.fromkeys(models) if model not in router.models]
    if unknown:
        _log.warning(
            "the router was not fitted on %s, only on %s: the mean confidence in the latter is"
            " taken for it; fit the router on traces of every model of the pool",
            ", ".join(unknown),
            ", ".join(router.models),
        )

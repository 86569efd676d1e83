"""Success probabilities of every model for a text, from the exported ONNX router.

This is the whole run-time side of the semantic router (Chimera §3.3): tokenizer, network, and the
per-model calibration ``sigmoid(scale · logit + bias)``. Neither torch nor transformers is needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat

from chimera_train.config import Settings, load_manifest
from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.predict.router_text import Reads
from chimera_train.predict.text_network import TextNetwork

__all__ = ["MANIFEST", "NETWORKS", "SCHEMA_VERSION", "TOKENIZER", "OnnxRouter"]

SCHEMA_VERSION = 1
MANIFEST = "router.json"
TOKENIZER = "tokenizer.json"
NETWORKS = {"fp32": "model.onnx", "int8": "model.int8.onnx"}

_BATCH = 32


class Label(Settings):
    """One output of the network and its calibration."""

    model: str
    scale: FiniteFloat
    bias: FiniteFloat


class RouterManifest(Settings):
    """``router.json``. ``sha256`` covers both networks and the tokenizer."""

    schema_version: int
    labels: list[Label] = Field(min_length=1)
    encoder: str  # what was fine-tuned
    max_length: int = Field(gt=0)
    tail_share: float = Field(default=0.0, ge=0, le=1)
    reads: Reads = "user"
    precision: Literal["fp32", "int8"]  # the network that is used
    sha256: dict[str, str]
    metrics: dict[str, Any]


class OnnxRouter:
    """Confidences q[m] for texts.

    Args:
        network: the ONNX file: int64 ``input_ids`` and ``attention_mask`` of shape (batch,
            sequence) to ``logits`` of shape (batch, n_models).
        tokenizer: the tokenizer file; its padding is used.
        models: the model of each logit.
        max_length: tokens, special ones included, that are read of a text.
        tail_share: share of them that is taken from the end of a longer text.
        reads: what of a prompt the texts are made of; see ``router_text``.
        scale: calibration, shape (n_models,).
        bias: calibration, shape (n_models,).
        threads: CPU threads of one call.

    Raises:
        DataError: a file is not what it should be, or the network has another number of outputs.
    """

    models: tuple[str, ...]
    reads: Reads

    def __init__(
        self,
        network: Path,
        tokenizer: Path,
        models: Sequence[str],
        *,
        max_length: int,
        tail_share: float = 0.0,
        reads: Reads = "user",
        scale: npt.ArrayLike,
        bias: npt.ArrayLike,
        threads: int = 1,
    ) -> None:
        self.models = tuple(models)
        self._scale = np.asarray(scale, dtype=np.float64)
        self._bias = np.asarray(bias, dtype=np.float64)
        self.reads = reads
        self._network = TextNetwork(
            network, tokenizer, max_length=max_length, tail_share=tail_share, threads=threads
        )
        outputs = self._network.n_outputs
        if outputs != len(self.models):
            raise DataError(
                f"{network} has {outputs} outputs for {len(self.models)} label(s): export it again."
            )

    @classmethod
    def load(cls, directory: Path, *, threads: int = 1) -> Self:
        """Load what ``fit router`` wrote.

        Raises:
            DataError: a file is missing, altered or malformed, or of a newer schema.
        """
        path = directory / MANIFEST
        manifest = load_manifest(path, RouterManifest, SCHEMA_VERSION)
        network = NETWORKS[manifest.precision]
        for name in (network, TOKENIZER):
            if sha256(directory / name) != manifest.sha256.get(name):
                raise DataError(
                    f"{directory / name} is not the file that {path} describes: export it again."
                )
        return cls(
            directory / network,
            directory / TOKENIZER,
            [label.model for label in manifest.labels],
            max_length=manifest.max_length,
            tail_share=manifest.tail_share,
            reads=manifest.reads,
            scale=[label.scale for label in manifest.labels],
            bias=[label.bias for label in manifest.labels],
            threads=threads,
        )

    def predict(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Calibrated success probability of every model, shape (len(texts), n_models)."""
        return _sigmoid(self._scale * self.logits(texts) + self._bias)

    def logits(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Uncalibrated logits, shape (len(texts), n_models)."""
        return self._network.run(texts, batch=_BATCH)


def _sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))

"""From a pretrained sentence encoder to the text sketch that ``predict.encoder`` evaluates.

The encoder stays as it is; what is fitted is the projection of its embeddings on the principal
components of the training texts. Embeddings take by far the longest, so :class:`KnownTexts` makes
each of them once, whatever number of folds refit the projection.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from joblib import Parallel, delayed
from torch.nn.functional import normalize
from transformers import AutoModel
from transformers.utils import cached_file

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json_object
from chimera_train.onnx_export import check_network, export_network, export_tokenizer, quantize
from chimera_train.output import Output
from chimera_train.predict.encoder import NETWORK, TOKENIZER, Encoder
from chimera_train.pretrained import load_pretrained, quiet_transformers, source_of

__all__ = ["KnownTexts", "fit_projection", "open_encoder"]

_SETTING = "fit_length.encoder"
_POOLING = "1_Pooling/config.json"
_FLAG = "pooling_mode_"
# Embeddings have length one: a smaller variance is rounding.
_NEGLIGIBLE = 1e-12

_Pooling = Literal["mean", "cls"]


class KnownTexts:
    """An encoder that embeds no text twice.

    Args:
        encoder: embeds what is not known yet.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.dim = encoder.dim
        self.max_length = encoder.max_length
        self._encoder = encoder
        self._row: dict[str, int] = {}
        # What the network computes in; half the memory of float64.
        self._table = np.empty((0, encoder.dim), dtype=np.float32)

    def learn(self, texts: Sequence[str], output: Output, *, n_jobs: int = -1) -> None:
        """Embed those of ``texts`` that are not known yet, showing how far it is.

        Args:
            texts: any strings.
            output: where progress goes.
            n_jobs: texts that are embedded at the same time; -1 takes one per core.
        """
        new = [text for text in dict.fromkeys(texts) if text not in self._row]
        vectors = np.empty((len(new), self.dim), dtype=np.float32)
        # Cores that share one text wait for each other at every layer.
        parallel = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")
        with output.progress() as progress:
            task = progress.add_task("Embedding the texts", total=len(new), note="")
            for row, vector in enumerate(
                parallel(delayed(self._encoder.embed)([text]) for text in new)
            ):
                vectors[row] = vector
                progress.advance(task)
        self._row |= {text: row for row, text in enumerate(new, start=len(self._row))}
        self._table = np.concatenate([self._table, vectors])

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """As ``Encoder.embed``; a text that was not learnt is embedded now."""
        result = np.empty((len(texts), self.dim))
        for row, text in enumerate(texts):
            known = self._row.get(text)
            result[row] = self._encoder.embed([text])[0] if known is None else self._table[known]
        return result

    def save(self, directory: Path) -> list[str]:
        """As ``Encoder.save``."""
        return self._encoder.save(directory)


@contextmanager
def open_encoder(encoder: str, *, max_length: int) -> Iterator[Encoder]:
    """Export ``encoder`` for as long as the block runs; sketches are saved within it.

    The weights have 8 bits: the network is then a quarter as large and twice as fast.

    Args:
        encoder: a directory, or a Hugging Face id ``org/name`` with an optional ``@revision``. Its
            ``1_Pooling/config.json`` chooses between the mean of the tokens and the first token;
            without one it is the mean. Layers that sentence-transformers adds behind are left out.
        max_length: tokens of a text that are read, special ones included; fewer where the encoder
            reads fewer. The rest is cut off.

    Raises:
        ConfigError: there is no such encoder, it is not a text encoder with a fast tokenizer, or
            it pools in another way.
        ChimeraError: it cannot be exported.
    """
    with tempfile.TemporaryDirectory(prefix="chimera-train-encoder-") as name:
        directory = Path(name)
        reads = _export(encoder, directory, max_length)
        yield Encoder(directory, max_length=reads)


def fit_projection(
    embeddings: npt.NDArray[np.float64], components: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean, shape (dim,), and leading principal components as columns, shape (dim, k).

    k is ``components``, or less where the embeddings vary in fewer directions. The largest entry of
    a component is positive, so that its sign does not depend on the machine.

    Args:
        embeddings: one row a text, shape (n, dim).
        components: the most components.
    """
    dim = embeddings.shape[1]
    if not len(embeddings):
        return np.zeros(dim), np.empty((dim, 0))
    mean = embeddings.mean(axis=0)
    centred = embeddings - mean
    variances, directions = np.linalg.eigh(centred.T @ centred / len(embeddings))
    order = np.argsort(-variances)[:components]
    order = order[variances[order] > _NEGLIGIBLE]
    projection = directions[:, order]
    largest = np.abs(projection).argmax(axis=0)
    return mean, projection * np.sign(projection[largest, np.arange(len(order))])


def _export(encoder: str, directory: Path, max_length: int) -> int:
    """Write network and tokenizer into ``directory``; the tokens that are read."""
    with quiet_transformers():
        model, tokenizer = load_pretrained(encoder, AutoModel, _SETTING)
    reads = getattr(model.config, "max_position_embeddings", None)
    if reads is None or model.config.is_encoder_decoder:
        raise ConfigError(
            f"{_SETTING}: '{encoder}' is a {model.config.model_type}, which is no text encoder:"
            " choose one of the BERT family."
        )
    reads = min(max_length, reads, tokenizer.model_max_length)
    model.set_attn_implementation("eager")  # the fused kernels have no ONNX form
    network = _Embedding(model, _pooling(encoder)).eval()
    full = directory / "full.onnx"
    export_network(network, full, output="sentence_embedding", what="encoder")
    check_network(
        network,
        full,
        vocabulary=model.config.vocab_size,
        max_length=reads,
        what="encoder",
        one="a component",
    )
    # With one scale a matrix the embeddings turn away from the exact ones several times as far.
    quantize(full, directory / NETWORK)
    full.unlink()
    export_tokenizer(tokenizer, directory / TOKENIZER)
    return reads


class _Embedding(torch.nn.Module):
    """The network as a function of two tensors to one vector a text, of length one."""

    def __init__(self, model: Any, pooling: _Pooling) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        if self.pooling == "cls":
            return normalize(hidden[:, 0])
        # Normalised, the sum over the tokens is their mean.
        return normalize((hidden * attention_mask.unsqueeze(-1)).sum(1))


def _pooling(encoder: str) -> _Pooling:
    """How ``encoder`` says that its token vectors become one."""
    name, source = source_of(encoder)
    try:
        path = cached_file(name, _POOLING, _raise_exceptions_for_missing_entries=False, **source)
        if path is None:
            return "mean"
        config = read_json_object(Path(path))
    except (OSError, DataError) as error:
        raise ConfigError(f"{_SETTING}: '{encoder}' cannot be read: {error}") from error
    # Newer versions of sentence-transformers write the mode's name, older ones a flag for each.
    modes = [key.removeprefix(_FLAG) for key, on in config.items() if key.startswith(_FLAG) and on]
    mode = str(config.get("pooling_mode", "+".join(modes)))
    mode = mode.removesuffix("_tokens").removesuffix("_token")
    if mode not in ("mean", "cls"):
        raise ConfigError(
            f"{_SETTING}: '{encoder}' pools by '{mode}', and only 'mean' and 'cls' are known:"
            " choose another encoder."
        )
    return "cls" if mode == "cls" else "mean"

"""Training the upper layers of an encoder alone, which is what a CPU has the time for.

What does not change needs to be computed once only: the outputs of the frozen part, the embeddings
and the lowest layers, are kept on the disk for each text, and training runs the layers above. They
are computed without dropout, as half-precision numbers, which takes twice the encoder's width in
bytes for each token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from chimera_train.errors import ConfigError
from chimera_train.files import atomic_path
from chimera_train.output import Output

__all__ = ["FrozenOutputs", "LowerLayers", "collate"]

# Largest relative difference of the last states that half precision explains.
_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class FrozenOutputs:
    """What the frozen part makes of each text, with the labels; a data set for the ``Trainer``.

    Attributes:
        states: one row a token, all texts behind each other, shape (n_tokens, width), float16.
        first: the first row of each text, and the number of rows, shape (n + 1,).
        labels: what the ``Trainer`` hands to the loss, shape (n, …).
    """

    states: npt.NDArray[np.float16]
    first: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, npt.NDArray[Any]]:
        states = self.states[self.first[row] : self.first[row + 1]]
        return {"inputs_embeds": np.asarray(states), "labels": self.labels[row]}


def collate(rows: Sequence[dict[str, npt.NDArray[Any]]]) -> dict[str, torch.Tensor]:
    """Rows of :class:`FrozenOutputs` as a batch, padded to the longest."""
    states = [torch.from_numpy(row["inputs_embeds"].astype(np.float32)) for row in rows]
    mask = [torch.ones(len(each), dtype=torch.int64) for each in states]
    return {
        "inputs_embeds": nn.utils.rnn.pad_sequence(states, batch_first=True),
        "attention_mask": nn.utils.rnn.pad_sequence(mask, batch_first=True),
        "labels": torch.from_numpy(np.stack([row["labels"] for row in rows])),
    }


class LowerLayers:
    """The embeddings and the lowest layers of a classifier.

    Args:
        model: a whole classifier of ``transformers``.
        n_layers: how many layers.

    Raises:
        ConfigError: it does not have so many layers, or is not made of embeddings and layers.
    """

    def __init__(self, model: Any, n_layers: int) -> None:
        self._model = model
        self._encoder = model.base_model
        total = model.config.num_hidden_layers
        layers = next((module for module in _lists(model) if len(module) == total), None)
        if layers is None or not hasattr(self._encoder, "embeddings"):
            raise ConfigError(
                f"fit_router.freeze_layers: the layers of a {model.config.model_type} cannot be"
                " told apart: set 0, or choose an encoder of the BERT family."
            )
        if n_layers > total:
            raise ConfigError(
                f"fit_router.freeze_layers: the encoder has {total} layers, not {n_layers}."
            )
        self._layers = layers
        self._n_layers = n_layers

    def outputs(
        self,
        ids: Sequence[Sequence[int]],
        labels: npt.NDArray[np.float32],
        path: Path,
        output: Output,
    ) -> FrozenOutputs:
        """What these layers make of texts.

        Args:
            ids: the token ids of each text.
            labels: what to keep beside them.
            path: where the states are kept; if the file is there already, it is taken as it is.
            output: where progress goes.

        Raises:
            ConfigError: the encoder computes something else from these outputs than from the ids.
        """
        first = np.concatenate([[0], np.cumsum([len(row) for row in ids], dtype=np.int64)])
        shape = int(first[-1]), self._model.config.hidden_size
        self._model.eval()
        if not path.exists():
            with atomic_path(path) as temporary, output.progress() as progress:
                states = np.memmap(temporary, np.float16, "w+", shape=shape)
                task = progress.add_task("Running the frozen layers", total=len(ids), note="")
                for row, tokens in enumerate(ids):
                    states[first[row] : first[row + 1]] = self._run(tokens)
                    progress.advance(task)
                states.flush()
        found = FrozenOutputs(np.memmap(path, np.float16, "r", shape=shape), first, labels)
        self._check(found, ids)
        return found

    @contextmanager
    def taken_out(self) -> Iterator[None]:
        """Leave them out of the classifier for as long as the block runs.

        Within it the classifier takes ``inputs_embeds`` of :class:`FrozenOutputs` in place of token
        ids, and what is trained is the layers above with pooling and classifier.
        """
        embeddings, lower = self._encoder.embeddings, self._layers[: self._n_layers]
        embeddings.forward = _as_given
        del self._layers[: self._n_layers]
        trained = {id(weight) for weight in self._layers.parameters()}
        pooler = getattr(self._encoder, "pooler", None)
        trained |= {id(weight) for weight in pooler.parameters()} if pooler is not None else set()
        for weight in self._encoder.parameters():
            weight.requires_grad_(id(weight) in trained)
        try:
            yield
        finally:
            del embeddings.forward
            for index, layer in enumerate(lower):
                self._layers.insert(index, layer)

    def _run(self, tokens: Sequence[int]) -> npt.NDArray[np.float16]:
        """The states of one text; without padding a CPU wastes nothing."""
        kept = []
        hook = self._layers[self._n_layers - 1].register_forward_hook(
            lambda _module, _inputs, found: kept.append(found)
        )
        upper = self._layers[self._n_layers :]
        del self._layers[self._n_layers :]
        try:
            self._hidden(input_ids=torch.tensor([tokens], device=self._model.device))
        finally:
            hook.remove()
            self._layers.extend(upper)
        states = kept[0][0] if isinstance(kept[0], tuple) else kept[0]
        return states[0].cpu().numpy().astype(np.float16)

    def _hidden(self, **inputs: torch.Tensor) -> torch.Tensor:
        (any_input,) = inputs.values()
        mask = torch.ones(any_input.shape[:2], dtype=torch.int64, device=any_input.device)
        with torch.no_grad():
            return self._encoder(attention_mask=mask, **inputs).last_hidden_state

    def _check(self, found: FrozenOutputs, ids: Sequence[Sequence[int]]) -> None:
        longest = int(np.diff(found.first).argmax())
        expected = self._hidden(input_ids=torch.tensor([ids[longest]], device=self._model.device))
        states = torch.from_numpy(found[longest]["inputs_embeds"].astype(np.float32))[None]
        with self.taken_out():
            above = self._hidden(inputs_embeds=states.to(self._model.device))
        difference = torch.linalg.norm(above - expected) / torch.linalg.norm(expected)
        if not difference <= _TOLERANCE:
            raise ConfigError(
                f"fit_router.freeze_layers: a {self._model.config.model_type} computes something"
                " else without its lower layers: set 0, or choose an encoder of the BERT family."
            )


def _as_given(*arguments: Any, **named: Any) -> torch.Tensor:
    """In place of embeddings: the one argument that is no ids; models differ in where it is."""
    given = (*arguments, *named.values())
    return next(each for each in given if torch.is_tensor(each) and each.is_floating_point())


def _lists(model: Any) -> Iterator[nn.ModuleList]:
    return (module for module in model.base_model.modules() if isinstance(module, nn.ModuleList))

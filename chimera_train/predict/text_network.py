"""A network over texts, evaluated by ONNX Runtime behind its tokenizer, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from chimera_train.errors import DataError
from chimera_train.predict.reading import TextReader

__all__ = ["TextNetwork"]


class TextNetwork:
    """One row of numbers per text.

    Args:
        network: the ONNX file: int64 ``input_ids`` and ``attention_mask`` of shape (batch,
            sequence) to one output of shape (batch, n_outputs).
        tokenizer: the tokenizer file.
        max_length: tokens, special ones included, that are read of a text.
        tail_share: share of them that is taken from the end of a longer text; see ``TextReader``.
        threads: CPU threads of one call.

    Raises:
        DataError: a file is not what it should be.
    """

    n_outputs: int

    def __init__(
        self,
        network: Path,
        tokenizer: Path,
        *,
        max_length: int,
        tail_share: float = 0.0,
        threads: int = 1,
    ) -> None:
        try:
            loaded = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # tokenizers raises plain Exception for every failure
            raise DataError(f"{tokenizer} is not a usable tokenizer file: {error}.") from error
        self._pad_id = (loaded.padding or {}).get("pad_id", 0)
        self._reader = TextReader(loaded, max_length=max_length, tail_share=tail_share)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        try:
            self._session = onnxruntime.InferenceSession(
                str(network), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has no common base for its exceptions
            raise DataError(f"{network} is not a usable ONNX file: {error}.") from error
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 2 or not isinstance(shape[1], int):
            raise DataError(f"{network} has an output of shape {shape}, not of numbers per text.")
        self.n_outputs = shape[1]

    def run(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """The network's output for each text, shape (len(texts), n_outputs).

        One text at a time: on a CPU, padding costs more than a batch saves, and texts of a batch
        would share the scale of 8-bit activations, so that a text's output depended on its company.
        """
        outputs = [np.empty((0, self.n_outputs))]
        for tokens in self._reader.read(texts):
            ids = np.array([tokens or [self._pad_id]], dtype=np.int64)  # no network takes nothing
            mask = np.full_like(ids, bool(tokens))
            feed: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
            outputs.append(self._session.run(None, feed)[0].astype(np.float64))
        return np.concatenate(outputs)

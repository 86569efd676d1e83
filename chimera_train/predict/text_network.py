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
        tokenizer: the tokenizer file; its padding is used.
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
        padding = loaded.padding or {}
        self._pad_id = padding.get("pad_id", 0)
        self._pads_left = padding.get("direction") == "left"
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

    def run(self, texts: Sequence[str], *, batch: int) -> npt.NDArray[np.float64]:
        """The network's output for each text, shape (len(texts), n_outputs).

        Args:
            texts: any strings.
            batch: texts that go through the network together, padded to the longest of them.
        """
        parts = [np.empty((0, self.n_outputs))]
        for start in range(0, len(texts), batch):
            ids, mask = self._padded(self._reader.read(texts[start : start + batch]))
            feed: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
            parts.append(self._session.run(None, feed)[0].astype(np.float64))
        return np.concatenate(parts)

    def _padded(
        self, rows: Sequence[Sequence[int]]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Token ids, and 1 where they are no padding; both of the longest row's length."""
        # A network takes no sequence of nothing.
        shape = len(rows), max(1, *map(len, rows))
        ids, mask = np.full(shape, self._pad_id), np.zeros(shape, dtype=np.int64)
        for row, tokens in enumerate(rows):
            where = slice(-len(tokens), None) if self._pads_left else slice(len(tokens))
            if tokens:
                ids[row, where], mask[row, where] = tokens, 1
        return ids, mask

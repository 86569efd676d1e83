"""A network over texts, evaluated by ONNX Runtime behind its tokenizer, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from tokenizers import Tokenizer

from chimera_train.errors import DataError

__all__ = ["TextNetwork"]


class TextNetwork:
    """One row of numbers per text.

    Args:
        network: the ONNX file: int64 ``input_ids`` and ``attention_mask`` of shape (batch,
            sequence) to one output of shape (batch, n_outputs).
        tokenizer: the tokenizer file; its padding is used.
        max_length: tokens, special ones included, after which a text is cut off.
        threads: CPU threads of one call.

    Raises:
        DataError: a file is not what it should be.
    """

    n_outputs: int

    def __init__(
        self, network: Path, tokenizer: Path, *, max_length: int, threads: int = 1
    ) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # tokenizers raises plain Exception for every failure
            raise DataError(f"{tokenizer} is not a usable tokenizer file: {error}.") from error
        self._tokenizer.enable_truncation(max_length)
        self._pad_id = (self._tokenizer.padding or {}).get("pad_id", 0)
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
            # A request body may hold a lone surrogate, which has no UTF-8 form.
            clean = [
                text.encode(errors="replace").decode() for text in texts[start : start + batch]
            ]
            encodings = self._tokenizer.encode_batch(clean)
            for encoding in encodings:  # a network takes no sequence of nothing
                encoding.pad(1, pad_id=self._pad_id)
            feed: dict[str, Any] = {
                "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
                "attention_mask": np.array(
                    [encoding.attention_mask for encoding in encodings], dtype=np.int64
                ),
            }
            parts.append(self._session.run(None, feed)[0].astype(np.float64))
        return np.concatenate(parts)

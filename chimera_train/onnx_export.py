"""Writing networks over texts, and their tokenizers, as files that need no torch.

Every network maps int64 ``input_ids`` and ``attention_mask`` of shape (batch, sequence) to one
float32 output of shape (batch, n). The exported graph is run against the network that it came from,
on several shapes, so that a graph that differs is never kept.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from chimera_train.errors import ChimeraError

__all__ = ["TOLERANCE", "check_network", "export_network", "export_tokenizer", "quantize"]

# Largest difference of an output that rounding explains.
TOLERANCE = 1e-4

_OPSET = 18


def export_network(network: torch.nn.Module, path: Path, *, output: str, what: str) -> None:
    """Write ``network``, a function of two tensors, as ONNX.

    Args:
        network: in evaluation mode, with attention that has an ONNX form (``eager``).
        path: the file to write.
        output: name of the output.
        what: what the network is, for the error.

    Raises:
        ChimeraError: the exporter does not know something in the network.
    """
    # Two tensors: one object passed twice would become a single input.
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in range(2))
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with _quiet_exporter():
            torch.onnx.export(
                network,
                example,
                str(path),
                input_names=["input_ids", "attention_mask"],
                output_names=[output],
                dynamic_shapes=(shape, shape),
                opset_version=_OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever the exporter meets in a network it does not know
        reason = str(error).partition("\n")[0]
        raise ChimeraError(f"The {what} cannot be exported as ONNX: {reason}") from error


def check_network(
    network: torch.nn.Module, path: Path, *, vocabulary: int, max_length: int, what: str, one: str
) -> None:
    """Compare what the ONNX file ``path`` and ``network`` give for the same tokens.

    Args:
        network: what was exported.
        path: the exported file.
        vocabulary: token ids that the network knows.
        max_length: the most tokens that it is given.
        what: what the network is, for the error.
        one: one number of its output, for the error.

    Raises:
        ChimeraError: they disagree by more than :data:`TOLERANCE`.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    # One token, odd shapes, and more tokens than a local attention window of ModernBERT.
    for rows, tokens in ((1, 1), (1, 7), (5, 33), (2, 300)):
        length = min(tokens, max_length)
        ids = torch.randint(vocabulary, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[-1, (length + 1) // 2 :] = 0  # padding
        with torch.no_grad():
            expected = network(ids, mask).numpy()
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        difference = float(np.abs(session.run(None, feed)[0] - expected).max())
        if not difference <= TOLERANCE:
            raise ChimeraError(
                f"The exported {what} differs from the trained one by {difference:.2g} in {one}"
                f" at shape ({rows}, {length}), more than {TOLERANCE:g}: it is not kept."
            )


def quantize(full: Path, path: Path) -> None:
    """Write the network ``full`` to ``path`` with weights of 8 bits, each column with its scale."""
    with _quiet_exporter():
        quantize_dynamic(full, path, weight_type=QuantType.QInt8, per_channel=True)


def export_tokenizer(tokenizer: Any, path: Path) -> None:
    """Write the fast ``tokenizer`` of transformers with its padding and without truncation."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
    )
    backend.save(str(path))


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence remarks about torch's own code, torchvision's absence and optional preparation."""
    exporter, root = logging.getLogger("torch.onnx"), logging.getLogger()
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    root.addFilter(_is_no_advice)  # onnxruntime logs to the root logger itself
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
            yield
    finally:
        exporter.setLevel(level)
        root.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "run pre-processing before quantization" not in record.getMessage()

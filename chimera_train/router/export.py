"""Writing a trained router as ONNX, in full precision and in 8 bits.

The exported graph is run against the network that it came from, on several shapes; a graph that
differs is never kept.
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
from chimera_train.predict.router import NETWORKS, TOKENIZER

__all__ = ["TOLERANCE", "check_export", "export_router"]

# Largest difference of a logit that rounding explains.
TOLERANCE = 1e-4

_OPSET = 18


def export_router(model: Any, tokenizer: Any, directory: Path, *, max_length: int) -> None:
    """Write both networks and the tokenizer into ``directory``.

    Raises:
        ChimeraError: the network cannot be exported, or ONNX Runtime and torch disagree by more
            than :data:`TOLERANCE`.
    """
    model.set_attn_implementation("eager")  # the fused kernels have no ONNX form
    full = directory / NETWORKS["fp32"]
    _export(model, full)
    check_export(model, full, max_length=max_length)
    with _quiet_exporter():
        quantize_dynamic(full, directory / NETWORKS["int8"], weight_type=QuantType.QInt8)

    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
    )
    backend.save(str(directory / TOKENIZER))


def check_export(model: Any, path: Path, *, max_length: int) -> None:
    """Compare the logits of the ONNX file ``path`` with those of ``model``.

    Raises:
        ChimeraError: they disagree by more than :data:`TOLERANCE`.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    # One token, odd shapes, and more tokens than a local attention window of ModernBERT.
    for rows, length in ((1, 1), (1, 7), (5, 33), (2, min(max_length, 300))):
        ids = torch.randint(model.config.vocab_size, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        mask[-1, (length + 1) // 2 :] = 0  # padding
        with torch.no_grad():
            expected = model(input_ids=ids, attention_mask=mask).logits.numpy()
        feed = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        difference = float(np.abs(session.run(["logits"], feed)[0] - expected).max())
        if not difference <= TOLERANCE:
            raise ChimeraError(
                f"The exported router differs from the trained one by {difference:.2g} in a logit"
                f" at shape ({rows}, {length}), more than {TOLERANCE:g}: it is not kept."
            )


class _Logits(torch.nn.Module):
    """The network as a function of two tensors to one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def _export(model: Any, path: Path) -> None:
    # Two tensors: one object passed twice would become a single input.
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in range(2))
    shape = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    try:
        with _quiet_exporter():
            torch.onnx.export(
                _Logits(model).eval(),
                example,
                str(path),
                input_names=["input_ids", "attention_mask"],
                output_names=["logits"],
                dynamic_shapes=(shape, shape),
                opset_version=_OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # whatever the exporter meets in a network it does not know
        reason = str(error).partition("\n")[0]
        raise ChimeraError(f"The router cannot be exported as ONNX: {reason}") from error


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

"""Writing a trained router as ONNX, in full precision and in 8 bits, with its tokenizer."""

from pathlib import Path
from typing import Any

import torch

from chimera_train.onnx_export import check_network, export_network, export_tokenizer, quantize
from chimera_train.predict.router_scorers import NETWORKS, TOKENIZER

__all__ = ["check_export", "export_router"]


def export_router(model: Any, tokenizer: Any, directory: Path, *, max_length: int) -> None:
    """Write both networks and the tokenizer into ``directory``.

    Raises:
        ChimeraError: the network cannot be exported, or ONNX Runtime and torch disagree by more
            than ``onnx_export.TOLERANCE``.
    """
    model.set_attn_implementation("eager")  # the fused kernels have no ONNX form
    full = directory / NETWORKS["fp32"]
    export_network(_Logits(model).eval(), full, output="logits", what="router")
    check_export(model, full, max_length=max_length)
    quantize(full, directory / NETWORKS["int8"])
    export_tokenizer(tokenizer, directory / TOKENIZER)


def check_export(model: Any, path: Path, *, max_length: int) -> None:
    """Compare the logits of the ONNX file ``path`` with those of ``model``.

    Raises:
        ChimeraError: they disagree by more than ``onnx_export.TOLERANCE``.
    """
    check_network(
        _Logits(model).eval(),
        path,
        vocabulary=model.config.vocab_size,
        max_length=max_length,
        what="router",
        one="a logit",
    )


class _Logits(torch.nn.Module):
    """The network as a function of two tensors to one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

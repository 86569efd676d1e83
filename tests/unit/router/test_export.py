import logging
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tokenizers import Tokenizer

from chimera_train.errors import ChimeraError
from chimera_train.predict.router import NETWORKS, TOKENIZER
from chimera_train.router import export
from chimera_train.router.encoder import build_encoder
from chimera_train.router.settings import RouterSettings


def test_a_graph_that_differs_is_not_kept(
    tmp_path: Path,
    settings: RouterSettings,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, tokenizer = build_encoder(settings, ["a", "b"], ["some text", "more text"])
    export.export_router(model.eval(), tokenizer, tmp_path, max_length=64)
    # The exporter's own narration would end up in front of a command's JSON.
    assert capsys.readouterr().out == ""
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]

    session = onnxruntime.InferenceSession(str(tmp_path / NETWORKS["int8"]))
    feed = {name: np.ones((3, 9), dtype=np.int64) for name in ("input_ids", "attention_mask")}
    assert session.run(["logits"], feed)[0].shape == (3, 2)
    backend = Tokenizer.from_file(str(tmp_path / TOKENIZER))
    assert backend.truncation is None
    assert backend.padding["pad_id"] == tokenizer.pad_token_id

    with torch.no_grad():
        model.classifier.bias += 1e-3
    with pytest.raises(ChimeraError, match=r"differs from the trained one by 0\.001 in a logit"):
        export.check_export(model, tmp_path / NETWORKS["fp32"], max_length=64)

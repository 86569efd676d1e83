from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    MPNetConfig,
    MPNetForSequenceClassification,
)

from chimera_train.errors import ConfigError
from chimera_train.output import Output
from chimera_train.router.encoder import build_encoder
from chimera_train.router.freeze import LowerLayers, collate
from chimera_train.router.settings import RouterSettings, SmallEncoder

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_labels": 2,
}
IDS = [[3, 4, 5, 6, 7, 8], [9], [10, 11, 12, 13]]
LABELS = np.arange(6, dtype=np.float32).reshape(3, 2)


def _modern_bert():
    settings = RouterSettings(
        encoder="small", small=SmallEncoder(hidden_size=16, layers=3, heads=2)
    )
    texts = [chr(97 + i) * 2 for i in range(26)] * 2
    return build_encoder(settings, ["a", "b"], texts)[0]


MODELS = {
    "ModernBERT": _modern_bert,
    "BERT": lambda: BertForSequenceClassification(BertConfig(**SIZES)),
    "DistilBERT": lambda: DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=50, dim=16, n_heads=2, hidden_dim=32, n_layers=3, num_labels=2)
    ),
    "MPNet": lambda: MPNetForSequenceClassification(MPNetConfig(**SIZES)),
}


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_above_computes_the_same_from_kept_outputs(
    name: str, n_layers: int, tmp_path: Path, output: Output
) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    lower = LowerLayers(model, n_layers)
    kept = lower.outputs(IDS, LABELS, tmp_path / "kept.f16", output)
    assert kept.states.dtype == np.float16
    assert len(kept) == 3
    expected = [model(input_ids=torch.tensor([row])).logits[0] for row in IDS]
    batch = collate([kept[row] for row in range(3)])
    assert batch.pop("labels").tolist() == LABELS.tolist()
    with lower.taken_out():
        logits = model(**batch).logits
        trained = {key for key, value in model.named_parameters() if value.requires_grad}
    torch.testing.assert_close(logits, torch.stack(expected), atol=2e-3, rtol=0)
    assert not any("embeddings" in key for key in trained)
    assert any("classifier" in key for key in trained)
    assert any("layer" in key for key in trained) == (n_layers < 3)
    # The model is whole again, in the same order.
    assert list(model.state_dict()) == list(before)
    for key, value in model.state_dict().items():
        assert value.equal(before[key]), key


def test_outputs_are_computed_once(tmp_path: Path, output: Output) -> None:
    lower = LowerLayers(MODELS["BERT"](), 2)
    first = lower.outputs(IDS, LABELS, tmp_path / "kept.f16", output)
    written = (tmp_path / "kept.f16").stat().st_mtime_ns
    again = lower.outputs(IDS, LABELS, tmp_path / "kept.f16", output)
    assert (tmp_path / "kept.f16").stat().st_mtime_ns == written
    np.testing.assert_array_equal(again.states, first.states)


def test_what_cannot_be_frozen_is_a_configuration_error(tmp_path: Path, output: Output) -> None:
    with pytest.raises(ConfigError, match="has 3 layers, not 4"):
        LowerLayers(MODELS["BERT"](), 4)
    gpt = GPT2ForSequenceClassification(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50))
    with pytest.raises(ConfigError, match="layers of a gpt2 cannot be told apart"):
        LowerLayers(gpt, 1)
    # States of another encoder: what is above makes something else of them.
    LowerLayers(MODELS["BERT"](), 2).outputs(IDS, LABELS, tmp_path / "kept.f16", output)
    with pytest.raises(ConfigError, match="computes something else without its lower layers"):
        LowerLayers(MODELS["BERT"](), 2).outputs(IDS, LABELS, tmp_path / "kept.f16", output)

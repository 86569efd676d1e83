from pathlib import Path

import pytest

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError
from chimera_train.router.encoder import build_encoder
from chimera_train.router.settings import RouterSettings, SmallEncoder

TEXTS = ["Anna has 12 apples.", "Anna buys 34 apples.", "Éva sells 5 PEARS."]
LABELS = ["package:a", "org/b", "c"]


def test_small_encoder_has_the_shape_and_the_labels(settings: RouterSettings) -> None:
    model, _ = build_encoder(settings, LABELS, TEXTS)
    assert type(model).__name__ == "ModernBertForSequenceClassification"
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (32, 1)
    assert model.config.problem_type == "multi_label_classification"
    assert list(model.config.id2label.values()) == LABELS


def test_small_vocabulary_splits_numbers_and_spells_unknown_words(
    settings: RouterSettings,
) -> None:
    _, tokenizer = build_encoder(settings, LABELS, TEXTS)
    assert tokenizer.tokenize("anna APPLES 125 plan") == [
        "anna", "apples", "1", "2", "5", "p", "##l", "##a", "##n",
    ]  # fmt: skip
    assert tokenizer.tokenize("eva ☃") == ["e", "##v", "##a", "[UNK]"]
    ids = tokenizer("anna")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["[CLS]", "anna", "[SEP]"]


def test_small_vocabulary_is_the_same_every_time(settings: RouterSettings) -> None:
    texts = [f"word{i} {chr(97 + i % 26)}{i} shared" for i in range(300)] * 2
    first, second = (build_encoder(settings, LABELS, texts)[1].get_vocab() for _ in range(2))
    assert first == second


def test_a_saved_encoder_is_loaded_from_its_directory(
    tmp_path: Path, settings: RouterSettings
) -> None:
    model, tokenizer = build_encoder(settings, ["x"], TEXTS)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, loaded_tokenizer = build_encoder(
        settings.model_copy(update={"encoder": str(tmp_path), "small": None}), LABELS, ["other"]
    )
    assert loaded.config.num_labels == len(LABELS)  # a new head on the old body
    kept = dict(model.model.named_parameters())
    for name, weight in loaded.model.named_parameters():
        assert weight.equal(kept[name]), name
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()

    too_long = {"encoder": str(tmp_path), "small": None, "max_length": 65}
    with pytest.raises(ConfigError, match="reads at most 64 tokens, not 65"):
        build_encoder(settings.model_copy(update=too_long), LABELS, TEXTS)


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "no-such-thing"}'])
def test_what_is_no_encoder_is_a_configuration_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "encoder"
    if content is not None:
        path.mkdir()
        (path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"fit_router\.encoder: '.*encoder' is neither"):
        build_encoder(RouterSettings(encoder=str(path)), LABELS, TEXTS)


def test_shape_belongs_to_the_small_encoder_and_must_fit() -> None:
    with pytest.raises(ConfigError, match="'small' describes 'encoder: small'"):
        parse_settings({"encoder": "org/name", "small": {"layers": 1}}, RouterSettings, "p.yaml")
    with pytest.raises(ConfigError, match="multiple of twice the heads"):
        parse_settings({"hidden_size": 36, "heads": 4}, SmallEncoder, "p.yaml")

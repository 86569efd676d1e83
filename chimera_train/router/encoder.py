"""The network before training: a pretrained encoder, or a small untrained ModernBERT."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from chimera_train.errors import ConfigError
from chimera_train.pretrained import load_pretrained
from chimera_train.router.settings import SMALL, RouterSettings, SmallEncoder

__all__ = ["build_encoder"]

_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
}
_VOCABULARY = 8192
# A word seen once teaches nothing; spelled out, it trains the pieces of unknown words.
_LEAST_COUNT = 2


def build_encoder(
    settings: RouterSettings, labels: Sequence[str], texts: Sequence[str]
) -> tuple[Any, Any]:
    """A multi-label classifier with one output per label, and its fast tokenizer.

    Args:
        settings: which encoder, and for a small one its shape.
        labels: the models whose success is predicted.
        texts: the training texts, from which a small encoder's vocabulary is made.

    Raises:
        ConfigError: the encoder does not exist, is not a text encoder with a fast tokenizer, or
            reads fewer tokens than ``max_length``.
    """
    config = {
        "num_labels": len(labels),
        "problem_type": "multi_label_classification",
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    if settings.encoder == SMALL:
        return _small(settings.small or SmallEncoder(), settings.max_length, config, texts)

    model, tokenizer = load_pretrained(
        settings.encoder,
        AutoModelForSequenceClassification,
        "fit_router.encoder",
        ignore_mismatched_sizes=True,  # the head of a router of other models is replaced
        **config,
    )
    limit = model.config.max_position_embeddings
    if settings.max_length > limit:
        raise ConfigError(
            f"fit_router.max_length: '{settings.encoder}' reads at most {limit} tokens, not"
            f" {settings.max_length}."
        )
    return model, tokenizer


def _small(
    shape: SmallEncoder, max_length: int, config: dict[str, Any], texts: Sequence[str]
) -> tuple[Any, Any]:
    tokenizer = _word_pieces(texts)
    model = ModernBertForSequenceClassification(
        ModernBertConfig(
            vocab_size=len(tokenizer),
            hidden_size=shape.hidden_size,
            intermediate_size=2 * shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=max_length,
            # Attention can count sentences and weigh them; a mean forgets how long the text was.
            classifier_pooling="cls",
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            **config,
        )
    )
    return model, tokenizer


def _word_pieces(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A lower-case WordPiece tokenizer of whole words and, for unknown words, of characters.

    Numbers are split into digits. The vocabulary is made here rather than by
    ``WordPieceTrainer``, whose choice among equally frequent pairs changes from run to run.
    """
    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(individual_digits=True)]
    )
    counts = Counter(
        word
        for text in texts
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
    )
    characters = sorted({character for word in counts for character in word})
    words = sorted(
        (word for word, count in counts.items() if count >= _LEAST_COUNT and len(word) > 1),
        key=lambda word: (-counts[word], word),
    )
    pieces = [*_SPECIAL.values(), *characters, *(f"##{character}" for character in characters)]
    pieces += words[: max(0, _VOCABULARY - len(pieces))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk_token"]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_SPECIAL)

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from chimera_train.predict.reading import CHARACTERS_PER_TOKEN, TextReader

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(20))]
TEXT = " ".join(WORDS[4:])


def _tokenizer(*, with_special: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if with_special:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    # As sentence encoders come: neither may have a say.
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=3)
    return tokenizer


def _words(text: str, *, max_length: int, tail_share: float, with_special: bool = True) -> str:
    tokenizer = _tokenizer(with_special=with_special)
    (ids,) = TextReader(tokenizer, max_length=max_length, tail_share=tail_share).read([text])
    return " ".join(WORDS[id_] for id_ in ids)


@pytest.mark.parametrize(
    ("max_length", "tail_share", "expected"),
    [
        (22, 0.5, f"[CLS] {TEXT} [SEP]"),
        (8, 0.5, "[CLS] w0 w1 w2 w17 w18 w19 [SEP]"),
        (7, 0.5, "[CLS] w0 w1 w2 w18 w19 [SEP]"),
        (6, 0.0, "[CLS] w0 w1 w2 w3 [SEP]"),
        (6, 1.0, "[CLS] w16 w17 w18 w19 [SEP]"),
        (6, 0.75, "[CLS] w0 w17 w18 w19 [SEP]"),
        (2, 0.5, "[CLS] [SEP]"),
    ],
)
def test_a_long_text_keeps_its_ends(max_length: int, tail_share: float, expected: str) -> None:
    assert _words(TEXT, max_length=max_length, tail_share=tail_share) == expected


def test_a_tokenizer_without_special_tokens_has_no_frame() -> None:
    assert _words(TEXT, max_length=4, tail_share=0.5, with_special=False) == "w0 w1 w18 w19"
    assert _words("", max_length=4, tail_share=0.5, with_special=False) == ""


@given(st.text(st.characters()), st.integers(2, 9))
def test_without_a_tail_it_is_the_truncation_of_tokenizers(text: str, max_length: int) -> None:
    expected = _tokenizer()
    expected.no_padding()
    expected.enable_truncation(max_length)
    (ids,) = TextReader(_tokenizer(), max_length=max_length, tail_share=0.0).read([text])
    assert ids == expected.encode(text.encode(errors="replace").decode()).ids


def test_a_megabyte_is_cut_before_it_is_tokenized() -> None:
    reader = TextReader(_tokenizer(), max_length=130, tail_share=0.5)
    text = "w0 " * 200_000 + "w1 " * 200_000
    start = time.perf_counter()
    (ids,) = reader.read([text])
    assert time.perf_counter() - start < 0.5
    assert ids == [2, *[4] * 64, *[5] * 64, 3]
    # Where words are as long as no tokenizer makes them, fewer than max_length are left.
    (ids,) = reader.read([("x" * 10 * CHARACTERS_PER_TOKEN + " ") * 100_000])
    assert len(ids) < 130

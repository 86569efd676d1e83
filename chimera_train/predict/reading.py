"""A text as the tokens that a network reads: all of them, or the first and the last ones.

The end of a prompt often holds the actual question, so a text that is too long may lose its middle
instead. Training and run time both read through this module, so that they cannot differ.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer

__all__ = ["CHARACTERS_PER_TOKEN", "TextReader"]

#: A text is first cut to so many characters for each token that is kept, at the same place, so that
#: the time for a text is bounded. Words have about five, the longest indentations some twenty.
CHARACTERS_PER_TOKEN = 32


class TextReader:
    """Tokens of texts, special ones included, never more than ``max_length``.

    Args:
        tokenizer: without truncation and padding from here on.
        max_length: tokens, special ones included, that are kept of a text.
        tail_share: share of them, in 0..1, that is taken from the end of a text that is too long;
            the others are from its start.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, tail_share: float) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._prefix, self._suffix = _frame(tokenizer)
        room = max(0, max_length - len(self._prefix) - len(self._suffix))
        self._tail = int(room * tail_share)
        self._head = room - self._tail

    def read(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text.

        Args:
            texts: any strings.
        """
        encodings = self._tokenizer.encode_batch(
            [self._cut_characters(text) for text in texts], add_special_tokens=False
        )
        return [self._framed(encoding.ids) for encoding in encodings]

    def _cut_characters(self, text: str) -> str:
        head, tail = CHARACTERS_PER_TOKEN * self._head, CHARACTERS_PER_TOKEN * self._tail
        if len(text) > head + tail:
            text = text[:head] + text[len(text) - tail :]
        # A request body may hold a lone surrogate, which has no UTF-8 form.
        return text.encode(errors="replace").decode()

    def _framed(self, ids: list[int]) -> list[int]:
        if len(ids) > self._head + self._tail:
            ids = ids[: self._head] + ids[len(ids) - self._tail :]
        return self._prefix + ids + self._suffix


def _frame(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that ``tokenizer`` puts before and behind a text."""
    encoding = tokenizer.encode("a")
    inside = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if not inside:  # it knows no such word
        return encoding.ids, []
    return encoding.ids[: inside[0]], encoding.ids[inside[-1] + 1 :]

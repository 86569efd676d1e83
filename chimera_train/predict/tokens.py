"""Counting the tokens of a text with a model's own tokenizer file."""

from pathlib import Path

from tokenizers import Tokenizer

from chimera_train.errors import DataError

__all__ = ["TokenCounter"]


class TokenCounter:
    """Counts tokens of plain text, without special tokens or chat template.

    The same counter fills ``system_tokens`` and ``user_tokens`` when traces are collected and when
    the gateway predicts, so that both see the same features.

    Raises:
        DataError: the file is missing or is not a ``tokenizer.json``.
    """

    def __init__(self, tokenizer_json: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer_json))
        except Exception as error:  # tokenizers raises plain Exception for every failure
            raise DataError(f"{tokenizer_json} is not a usable tokenizer file: {error}.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """The number of tokens in ``text``; 0 for the empty string."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

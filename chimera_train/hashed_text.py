"""What is kept of a text that may not be stored: numbers, and keyed hashes of its terms.

The hashes are the leading 64 bits of keyed BLAKE2b. Nobody without the key can tell which term a
hash stands for by trying words; but how often each occurs, and with which others, stays visible,
and who has the key can test any word. The key therefore never lies in a data set. It is part of
whatever is fitted on such data, for a new text must be hashed with the same key.
"""

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import atomic_path

__all__ = ["HashKey", "HashedText", "Text", "key_path"]

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class HashKey:
    """A secret of 32 bytes.

    Raises:
        DataError: it has another length.
    """

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != _KEY_BYTES:
            raise DataError(f"A hash key has {_KEY_BYTES} bytes, not {len(self.secret)}.")

    @classmethod
    def read(cls, path: Path) -> "HashKey":
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the file is missing or holds something else.
        """
        try:
            return cls(bytes.fromhex(path.read_text(encoding="utf-8").strip()))
        except OSError as error:
            raise DataError(f"The hash key {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise DataError(f"{path} is not a hash key: 64 hexadecimal digits.") from error

    @classmethod
    def read_or_make(cls, path: Path) -> "HashKey":
        """The key in ``path``; a random one is made, readable by the user alone, if there is none.

        Raises:
            ConfigError: it cannot be written.
            DataError: as :meth:`read`.
        """
        if path.exists():
            return cls.read(path)
        key = cls(secrets.token_bytes(_KEY_BYTES))
        with atomic_path(path) as temporary:
            temporary.write_text(f"{key.secret.hex()}\n", encoding="utf-8")
        path.chmod(0o600)
        return key

    @property
    def name(self) -> str:
        """Tells keys apart without giving them away."""
        return hashlib.sha256(b"name of a hash key:" + self.secret).hexdigest()[:16]

    def hashed(self, terms: Iterable[str]) -> list[int]:
        """The hash of each term, a signed number of 64 bits."""
        return [_hashed(self.secret, term) for term in terms]


def key_path(directory: Path) -> Path:
    """Where the key of a data set is unless the user says: beside it, so as not to go with it.

    Raises:
        ConfigError: ``directory`` has no name to make one from.
    """
    if not directory.name:
        raise ConfigError(f"{directory} has no name: give the key's place with --hash-key-file.")
    return directory.with_name(f"{directory.name}.hash-key")


@lru_cache(1 << 16)
def _hashed(secret: bytes, term: str) -> int:
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8, key=secret)
    return int.from_bytes(digest.digest(), "big", signed=True)


@dataclass(frozen=True, slots=True, order=True)
class HashedText:
    """Stands for a text wherever its features are asked for.

    Attributes:
        key: name of the key.
        words, pairs: hashes of the text's words and of its pairs of neighbours, sorted, each as
            often as it occurs.
        numbers: what is counted in it (``predict.text_columns``), and nothing but counts.
        version: of these features.
    """

    key: str
    words: tuple[int, ...]
    pairs: tuple[int, ...]
    numbers: tuple[float, ...]
    version: int

    @classmethod
    def of_row(cls, features: Any) -> "HashedText | None":
        """Of a value of the column ``user_features`` or ``features``; None of an absent one."""
        if not isinstance(features, dict):
            return None
        words, pairs, numbers = (
            tuple(np.asarray(features[name]).tolist()) for name in ("words", "pairs", "numbers")
        )
        return cls(features["key"], words, pairs, numbers, features["version"])

    def row(self) -> dict[str, Any]:
        """The value of such a column."""
        return {
            "version": self.version,
            "key": self.key,
            "numbers": list(self.numbers),
            "words": list(self.words),
            "pairs": list(self.pairs),
        }


#: A text, or what is kept of it.
Text: TypeAlias = str | HashedText

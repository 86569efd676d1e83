"""What may be stored of texts, decided in one place for everything that writes traces.

Redaction replaces what matches a pattern, before anything else is done with a text. Without texts,
a stage keeps its counts and what is counted in its user message, and hashes of the words and pairs
of words in it, which need a key (``hashed_text``). Names and ids are kept as they are, and token
counts are those of the text as it was.
"""

import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chimera_train.errors import ConfigError
from chimera_train.hashed_text import HashKey, key_path
from chimera_train.predict.hashed_sketch import hashed_text

__all__ = ["REDACTED", "Privacy", "open_privacy"]

REDACTED = "[redacted]"
_STAGE_TEXTS = ("system_text", "user_text", "output_text", "error")
# What an error may tell where no text is stored: engines quote what they refuse.
_ERROR_KIND = re.compile(r"HTTP \d{3}|\b[A-Za-z]{1,40}(?:Error|Exception|Timeout)\b|timed out")


def open_privacy(
    out: Path,
    *,
    no_text: bool,
    redact: Sequence[str] = (),
    hash_key_file: Path | None = None,
) -> "Privacy":
    """What the options of a command ask for.

    Args:
        out: directory of the data set, beside which the key of ``no_text`` is made.
        no_text: store no texts.
        redact: patterns of what is replaced.
        hash_key_file: the key instead; it is made if there is no such file.

    Raises:
        ConfigError: a pattern is none, or matches nothing at all everywhere; a key is given for
            texts that are stored, or would go with the data set.
        DataError: the key's file holds something else.
    """
    if not no_text:
        if hash_key_file is not None:
            raise ConfigError("--hash-key-file is for --no-text: give both or none.")
        return Privacy(redact)
    path = (hash_key_file or key_path(out)).absolute()
    if path.is_relative_to(out.absolute()):
        raise ConfigError(
            f"The hash key {path} would be part of the data set {out}: keep it somewhere else."
        )
    return Privacy(redact, HashKey.read_or_make(path))


class Privacy:
    """Makes rows of what may be stored; safe to share by threads.

    Args:
        redact: patterns of what is replaced by ``REDACTED``.
        key: of the hashes that stand for texts; None stores texts.

    Attributes:
        replacements: how often something was replaced.

    Raises:
        ConfigError: as ``open_privacy``.
    """

    def __init__(self, redact: Sequence[str] = (), key: HashKey | None = None) -> None:
        self.key = key
        self.replacements = 0
        self._patterns = [_pattern(text) for text in redact]
        self._lock = threading.Lock()

    def facts(self) -> dict[str, Any]:
        """What decides what is stored, for provenance; not the patterns, which may be secret."""
        return {
            "texts": self.key is None,
            "hash_key": None if self.key is None else self.key.name,
            "redact_patterns": len(self._patterns),
        }

    def decisive(self) -> dict[str, Any]:
        """``facts`` without ``texts``, and without what was not asked for."""
        return {name: fact for name, fact in self.facts().items() if name != "texts" and fact}

    def redacted(self, text: str) -> str:
        """``text`` without what matches a pattern."""
        for pattern in self._patterns:
            text, n = pattern.subn(REDACTED, text)
            if n:
                with self._lock:
                    self.replacements += n
        return text

    def program(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What may be stored of a row of ``programs``."""
        return {**row, "error": self._error(row.get("error"))}

    def stage(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What may be stored of a row of ``stages``."""
        kept = dict(row)
        for name in _STAGE_TEXTS:
            if kept.get(name) is not None:
                kept[name] = self.redacted(kept[name])
        if self.key is not None:
            if kept.get("user_text") is not None:
                kept["user_features"] = hashed_text(kept["user_text"], self.key).row()
            kept |= dict.fromkeys(("system_text", "user_text", "output_text"))
            kept["error"] = self._error(kept.get("error"))
        return kept

    def question(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What may be stored of a row of ``questions``; of metadata without texts, the numbers."""
        kept = dict(row)
        if kept.get("text") is not None:
            kept["text"] = self.redacted(kept["text"])
            if self.key is not None:
                kept["features"] = hashed_text(kept["text"], self.key).row()
                kept["text"] = None
        if kept.get("metadata") is not None and (self._patterns or self.key):
            kept["metadata"] = json.dumps(self._values(json.loads(kept["metadata"])))
        return kept

    def _error(self, error: str | None) -> str | None:
        if error is None or self.key is None:
            return None if error is None else self.redacted(error)
        return ", ".join(dict.fromkeys(_ERROR_KIND.findall(error))) or "failed"

    def _values(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redacted(value)
        if isinstance(value, list):
            return [self._values(item) for item in value if self._is_kept(item)]
        if isinstance(value, dict):
            kept = {name: item for name, item in value.items() if self._is_kept(item)}
            return {name: self._values(item) for name, item in kept.items()}
        return value

    def _is_kept(self, value: Any) -> bool:
        return self.key is None or not isinstance(value, str)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"--redact {text!r} is not a regular expression: {error}.") from error
    if pattern.search(""):
        raise ConfigError(f"--redact {text!r} matches where there is nothing: ask for a character.")
    return pattern

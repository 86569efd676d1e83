"""The texts of chat messages as logs hold them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["output_text", "prompt_texts", "texts_of", "unpacked"]

_SYSTEM_ROLES = ("system", "developer")


def unpacked(value: Any) -> Any:
    """A value that may have been logged as JSON in a string; a text that is none stays."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def prompt_texts(messages: Any) -> tuple[str | None, str | None]:
    """The system messages, and all others, joined as the gateway joins them; None of none."""
    if not isinstance(messages, list):
        return None, (messages if isinstance(messages, str) else None)
    system: list[str] = []
    others: list[str] = []
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        (system if role in _SYSTEM_ROLES else others).extend(texts_of(message))
    return "\n".join(system) or None, "\n".join(others) or None


def output_text(choices: Any) -> str | None:
    """The text of the first choice of a response, None if it has none."""
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping):
            texts = texts_of(choice.get("message") or choice)
            return "\n".join(texts) or None
    return None


def texts_of(message: Any) -> list[str]:
    """The texts in a message, in its content, or in the parts of either."""
    return list(_texts(message))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, Mapping) and value.get("type", "text") in ("text", "message"):
        # OpenAI: content, and text in its parts; OpenTelemetry: parts, and content in them.
        for name in ("content", "text", "parts"):
            if value.get(name) is not None:
                yield from _texts(value[name])
                return

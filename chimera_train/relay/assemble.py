"""Putting a streamed response back together for a client that did not ask to stream.

The gateway always streams from its engines, because it has to see tokens as they come. The rules
are those of the OpenAI API: text grows, lists grow, everything else is what the last chunk said.
"""

from typing import Any

from chimera_train.errors import EngineError
from chimera_train.relay.events import Event

__all__ = ["Assembler"]

_WHOLE_OBJECT = {"chat.completion.chunk": "chat.completion"}
# Text that arrives once and whole; all other text arrives in pieces.
_WHOLE_TEXT = frozenset({"role", "id", "type", "name", "finish_reason", "stop_reason"})


class Assembler:
    """Collects the events of one stream and returns the response that they add up to.

    Attributes:
        head: what the chunks say beside their choices, the last of each.
    """

    def __init__(self) -> None:
        self.head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] | None = None

    def add(self, event: Event) -> None:
        """Take in one event; events without a payload change nothing."""
        payload = event.payload
        if payload is None:
            return
        self.head |= {key: value for key, value in payload.items() if key != "choices"}
        self._usage = event.usage or self._usage
        for chunk in event.choices:
            self._add_choice(chunk)

    @property
    def choices(self) -> list[dict[str, Any]]:
        """What has arrived of each choice."""
        return [self._choices[index] for index in sorted(self._choices)]

    @property
    def is_complete(self) -> bool:
        """Whether every choice that has begun has ended, and one has."""
        ends = [choice["finish_reason"] is not None for choice in self._choices.values()]
        return bool(ends) and all(ends)

    def response(self) -> dict[str, Any]:
        """The complete response object.

        Raises:
            EngineError: a choice did not finish, or none arrived: the stream was cut off.
        """
        choices = self.choices
        if not self.is_complete:
            raise EngineError("The engine ended its stream before the response was complete.")
        for choice in choices:
            for call in choice.get("message", {}).get("tool_calls", []):
                call.pop("index", None)  # part of the streaming format only
        kind = str(self.head.get("object"))
        return {
            **self.head,
            "object": _WHOLE_OBJECT.get(kind, kind),
            "choices": choices,
            "usage": self._usage,
        }

    def _add_choice(self, chunk: dict[str, Any]) -> None:
        index = chunk.get("index", 0)
        choice = self._choices.setdefault(
            index, {"index": index, "logprobs": None, "finish_reason": None}
        )
        for key, value in chunk.items():
            if key == "delta":
                message = choice.setdefault("message", {"role": "assistant", "content": None})
                _grow(message, value or {})
            elif key != "index":
                _grow(choice, {key: value})


def _grow(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    """Merge one delta into what has arrived so far; the delta itself is not changed or kept."""
    for key, value in piece.items():
        old = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif key == "tool_calls":
            _grow_tool_calls(whole.setdefault(key, []), value)
        elif isinstance(value, dict):
            whole[key] = old if isinstance(old, dict) else {}
            _grow(whole[key], value)
        elif isinstance(value, list):
            whole[key] = old if isinstance(old, list) else []
            whole[key].extend(value)
        elif isinstance(value, str) and isinstance(old, str) and key not in _WHOLE_TEXT:
            whole[key] = old + value
        else:
            whole[key] = value


def _grow_tool_calls(calls: list[dict[str, Any]], pieces: list[dict[str, Any]]) -> None:
    """Merge pieces of tool calls; the pieces of one call carry the same ``index``."""
    for piece in pieces:
        for call in calls:
            if call.get("index") == piece.get("index"):
                break
        else:
            calls.append(call := {})
        _grow(call, piece)

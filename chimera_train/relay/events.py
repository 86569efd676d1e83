"""Server-sent events as bytes: cut exactly where they end, read without being changed.

A relay forwards the very bytes that an engine sent, but has to know where one event ends to be able
to leave one out, and what is in it to count tokens and to see usage. So the splitter hands out the
raw bytes of each complete event, terminator included; joined, they are the input.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Event", "EventSplitter", "StreamObserver", "read_event"]

# A carriage return at the end of what has arrived may still be the first half of CR LF, so a lone
# one only counts as a line end once the byte after it is known.
_LINE_END = rb"(?:\r\n|\n|\r(?=[^\n]))"
_EVENT_END = re.compile(_LINE_END + _LINE_END)
_LINE = re.compile(rb"\r\n|\n|\r")
# What a delta may hold without a token having been generated.
_NOT_GENERATED = frozenset({"role"})


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event.

    Attributes:
        raw: its bytes as received, terminator included.
        payload: the JSON object in its data; None for comments, ``[DONE]`` and anything else.
    """

    raw: bytes
    payload: dict[str, Any] | None

    @property
    def new_tokens(self) -> int:
        """Output tokens in this event, one for each choice that grew.

        vLLM sends a chunk for each token and sequence, but merges the tokens of a client that it
        is ahead of, so that this is a lower bound; only usage has the exact figure.
        """
        return sum(_grew(choice) for choice in self.choices)

    @property
    def usage(self) -> dict[str, Any] | None:
        """The token usage that the event reports, if any."""
        usage = self.payload.get("usage") if self.payload is not None else None
        return usage if isinstance(usage, dict) else None

    @property
    def only_usage(self) -> bool:
        """Whether this is the chunk that ``stream_options.include_usage`` adds."""
        return self.usage is not None and not self.choices

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object of a stream that failed after its status was sent."""
        error = self.payload.get("error") if self.payload is not None else None
        if error is None or isinstance(error, dict):
            return error
        return {"message": str(error)}

    @property
    def choices(self) -> list[dict[str, Any]]:
        """The choices that the chunk carries a piece of."""
        choices = self.payload.get("choices") if self.payload is not None else None
        if not isinstance(choices, list):
            return []
        return [choice for choice in choices if isinstance(choice, dict)]


class EventSplitter:
    """Cuts a byte stream into events, wherever the chunks it arrives in begin and end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes, in order."""
        # A terminator that is cut by the chunk boundary began at most three bytes before it.
        searched = max(0, len(self._buffer) - 3)
        self._buffer += chunk
        start, found = 0, []
        while match := _EVENT_END.search(self._buffer, max(start, searched)):
            found.append(read_event(bytes(self._buffer[start : match.end()])))
            start = match.end()
        del self._buffer[:start]
        return found

    def flush(self) -> list[Event]:
        """What is left when the stream ends: at most one event, without a terminator."""
        raw, self._buffer = bytes(self._buffer), bytearray()
        return [read_event(raw)] if raw else []


@dataclass(slots=True)
class StreamObserver:
    """What one stream showed: when the first token came, how many came, and the usage.

    Times are those of the clock that the caller passes to :meth:`see`.
    """

    first_token_ms: float | None = None
    streamed_tokens: int = 0
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    def see(self, event: Event, now_ms: float) -> int:
        """Take note of one event; returns by how many output tokens the stream is longer now.

        What merged chunks hid is made up for when usage comes.
        """
        tokens = event.new_tokens
        if tokens and self.first_token_ms is None:
            self.first_token_ms = now_ms
        if event.usage is not None:
            self.usage = event.usage
            tokens = max(tokens, self.output_tokens - self.streamed_tokens)
        self.streamed_tokens += tokens
        self.error = event.error or self.error
        return tokens

    def see_body(self, body: bytes) -> None:
        """Take note of a whole JSON response that came instead of a stream."""
        whole = _parse(b"", body)
        self.usage, self.error = whole.usage, whole.error

    @property
    def error_status(self) -> int:
        """The HTTP status that an error in the stream stands for; 0 if there is none."""
        code = (self.error or {}).get("code")
        return code if isinstance(code, int) else 0

    @property
    def output_tokens(self) -> int:
        """Output tokens: what usage says, or the tokens that were counted."""
        return self._usage("completion_tokens", self.streamed_tokens)

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens as usage says; None when the engine did not."""
        return self._usage("prompt_tokens", None)

    def _usage(self, key: str, otherwise: Any) -> Any:
        value = (self.usage or {}).get(key)
        return value if isinstance(value, int) else otherwise


def read_event(raw: bytes) -> Event:
    """Parse the data lines of one raw event; whatever is not a JSON object has no payload."""
    lines = [line[5:].removeprefix(b" ") for line in _LINE.split(raw) if line.startswith(b"data:")]
    return _parse(raw, b"\n".join(lines))


def _parse(raw: bytes, data: bytes) -> Event:
    if not data.startswith(b"{"):
        return Event(raw, None)
    try:
        return Event(raw, json.loads(data))
    except (ValueError, RecursionError):
        return Event(raw, None)


def _grew(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(value for key, value in delta.items() if key not in _NOT_GENERATED)
    return bool(choice.get("text"))

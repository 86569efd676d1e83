"""A streamed chat completion while it comes in: its texts, counts and times."""

import math
import time
from collections.abc import Mapping
from typing import Any

from chimera_train.relay.events import Event

__all__ = ["Reply", "ms_since", "well_formed"]

_THINKING = "<think>"
_END_OF_THINKING = "</think>"
# No engine counts to more, and tables hold no more.
_MOST_TOKENS = 1 << 31


class Reply:
    """What a stream has brought so far; made when the request is sent.

    Attributes:
        start: when that was (of ``time.perf_counter``).
        ttft_ms: from there until the first chunk that carries a choice.
        finish_reason, prompt_tokens, output_tokens, reasoning_tokens: as the endpoint says.
        queue_ms: the endpoint's own measurement, where it reports one.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self._parts: list[str] = []
        self._thoughts: list[str] = []
        self.ttft_ms: float | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.reasoning_tokens: int | None = None
        self.queue_ms: float | None = None
        self._has_usage = False
        self._failure: Mapping[str, Any] | None = None

    def add(self, event: Event) -> None:
        """Take note of one event.

        Raises:
            AttributeError, KeyError, TypeError: it has another shape than a chat completion's.
        """
        if event.payload is None and (data := event.raw.strip()).startswith(b"data:"):
            # Without it the text would be short of a piece, and its counts not.
            if data[5:].strip() not in (b"", b"[DONE]"):
                raise TypeError("an event is no JSON object")
            return
        self._failure = event.error or self._failure
        for choice in event.choices:
            # Also without text: the first token may be one that shows nothing, such as the end.
            if self.ttft_ms is None:
                self.ttft_ms = ms_since(self.start)
            delta = choice.get("delta") or {}
            if content := delta.get("content"):
                self._parts.append(_text(content))
            if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                self._thoughts.append(_text(thought))
            if reason := choice.get("finish_reason"):
                self.finish_reason = well_formed(_text(reason))
        if event.usage is not None and event.payload is not None:
            self._has_usage = True
            self.prompt_tokens = _count(event.usage["prompt_tokens"])
            self.output_tokens = _count(event.usage["completion_tokens"])
            details = event.usage.get("completion_tokens_details") or {}
            if (thinking := details.get("reasoning_tokens")) is not None:
                self.reasoning_tokens = _count(thinking)
            if (queue_ms := (event.payload.get("metrics") or {}).get("queue_time_ms")) is not None:
                self.queue_ms = _milliseconds(queue_ms)

    def texts(self) -> tuple[str, str]:
        """What the model was thinking, and its answer.

        An engine without a reasoning parser leaves the thinking in the text, in ``<think>`` tags of
        which the chat template may have given the first; a reply that was cut short lacks the last.
        """
        thought, text = well_formed("".join(self._thoughts)), well_formed("".join(self._parts))
        if thought:
            return thought, text
        before, end, after = text.rpartition(_END_OF_THINKING)
        if end:
            return before.removeprefix(_THINKING).strip(), after.strip()
        if text.lstrip().startswith(_THINKING):
            return text.lstrip().removeprefix(_THINKING).strip(), ""
        return "", text

    def problem(self) -> str | None:
        """What a stream that has ended lacks; None: it is whole."""
        if self._failure is not None:
            return f"the stream failed: {self._failure.get('message')}"
        if self.finish_reason is None:
            return "the stream ended before the reply did"
        if not self._has_usage:
            return (
                "the reply has no token counts (usage): the endpoint has to support"
                " stream_options.include_usage"
            )
        return None


def well_formed(text: str) -> str:
    """``text`` in which halves of a character, which JSON can spell, are joined or replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST_TOKENS:
        raise TypeError(f"{value!r:.100} is no count of tokens")
    return value


def _milliseconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError(f"{value!r:.100} is no time")
    return float(value)


def ms_since(start: float) -> float:
    """Milliseconds since ``start`` (of ``time.perf_counter``)."""
    return (time.perf_counter() - start) * 1000

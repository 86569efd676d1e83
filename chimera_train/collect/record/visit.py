"""What is known of one request on its way, and the piece of the journal that it becomes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chimera_train.collect.record.programs import Program
from chimera_train.predict.tokens import TokenCounter
from chimera_train.relay.answer import Answer
from chimera_train.relay.api import Call, question_text
from chimera_train.relay.assemble import Assembler
from chimera_train.relay.events import StreamObserver

__all__ = ["Visit"]

_INT32 = range(2**31)
_INT64 = range(-(2**63), 2**63)


@dataclass(slots=True)
class Visit:
    """One request.

    Attributes:
        place: in its program, from 0.
        model: of the pool.
        engine: name of the engine that it was sent to.
        start_ms: when it was sent, since 1970.
        observer, assembler: see what its engine streams.
        answer: what arrived to its end; None if nothing did.
        error: why it did not complete.
    """

    call: Call
    program: Program
    place: int
    model: str
    engine: str
    start_ms: float
    observer: StreamObserver = field(default_factory=StreamObserver)
    assembler: Assembler = field(default_factory=Assembler)
    answer: Answer | None = None
    error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the engine has said all, though the connection may not have ended yet."""
        return self.assembler.is_complete and self.observer.usage is not None

    def piece(self, counter: TokenCounter | None, end_ms: float) -> dict[str, Any]:
        """The request as a piece of the journal, with its texts.

        Args:
            counter: counts the tokens of the parts of the prompt; None: they are unknown.
            end_ms: when it was over.
        """
        call = self.call
        return {
            "program_id": self.program.program_id,
            "name": self.program.name,
            "request": self.place,
            "is_last": call.program_id is None,
            "start_ms": self.start_ms,
            "end_ms": end_ms,
            "engine": self.engine,
            "workflow": call.workflow,
            "task": call.task,
            "question": self._question() if self.place == 0 else None,
            "stage": self._stage(counter, end_ms),
        }

    def _question(self) -> dict[str, Any]:
        return {"question_id": self.call.question_id, "text": question_text(self.call)}

    def _stage(self, counter: TokenCounter | None, end_ms: float) -> dict[str, Any]:
        call, observer, body = self.call, self.observer, self.call.body
        choices = self._choices()
        usage = observer.usage or {}
        details = usage.get("completion_tokens_details") or {}
        first_ms = observer.first_token_ms
        error = self._problem()
        return {
            "stage": call.stage,
            "model": self.model,
            "prompt_tokens": observer.prompt_tokens or 0,
            "output_tokens": observer.output_tokens,
            "reasoning_tokens": _integer(details, "reasoning_tokens", _INT64),
            "system_tokens": None if counter is None else counter.count(call.system_text),
            "user_tokens": None if counter is None else counter.count(call.user_text),
            "finish_reason": _text(choices[0].get("finish_reason")) if choices else None,
            "queue_ms": _number(self.assembler.head.get("metrics") or {}, "queue_time_ms"),
            "ttft_ms": None if first_ms is None else first_ms - self.start_ms,
            "e2e_ms": end_ms - self.start_ms,
            "max_tokens": _integer(body, "max_completion_tokens", _INT32)
            or _integer(body, "max_tokens", _INT32),
            "temperature": _number(body, "temperature"),
            "top_p": _number(body, "top_p"),
            "seed": _integer(body, "seed", _INT64),
            "attempt": 1,
            "error": None if error is None else _clean(error),
            "system_text": call.system_text,
            "user_text": call.user_text,
            "output_text": _clean("\n".join(map(_said, choices))),
        }

    def _choices(self) -> list[dict[str, Any]]:
        body = None if self.answer is None else self.answer.body
        if not isinstance(body, bytes):
            return self.assembler.choices
        try:
            choices = json.loads(body).get("choices", [])
            return [choice for choice in choices if isinstance(choice, dict)]
        except (ValueError, AttributeError, TypeError):
            return []

    def _problem(self) -> str | None:
        reason = (self.observer.error or {}).get("message")
        if self.answer is not None and self.answer.status >= 400:
            return f"HTTP {self.answer.status}: {reason}"
        if self.error is None and self.observer.prompt_tokens is None:
            return "the reply has no token counts (usage)"
        return self.error


def _said(choice: Mapping[str, Any]) -> str:
    """What a choice says: its text, and a line for every tool that it calls."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    lines = [f"{call.get('name')}({call.get('arguments')})" for call in calls]
    return "\n".join([*filter(None, [message.get("content")]), *lines])


def _clean(text: str) -> str:
    """Without lone surrogates, which JSON can spell but no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _text(value: Any) -> str | None:
    return _clean(value) if isinstance(value, str) else None


def _integer(values: Mapping[str, Any], name: str, allowed: range) -> int | None:
    value = values.get(name)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and value in allowed else None


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e9:
        return None
    return float(value)

"""The OpenAI API as a relay sees it: what a request says, and how an error is answered.

Only what a relay needs is read; every other field is passed on as it came.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chimera_train.errors import ChimeraError

__all__ = [
    "KINDS", "ApiError", "Call", "CallKind", "no_such_model", "parse_call", "question_text",
    "read_object", "upstream_body",
]  # fmt: skip

_IDENTITY = ("program_id", "workflow", "stage", "question_id", "task")
_MAX_IDENTITY_CHARS = 256
_KIND_NAMES = {bool: "boolean", dict: "JSON object", str: "string"}
_SYSTEM_ROLES = frozenset({"system", "developer"})


class ApiError(ChimeraError):
    """A request that is answered with an error in OpenAI's format.

    Attributes:
        status: HTTP status.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._error = {"message": message, "type": kind, "param": param, "code": code}

    def body(self) -> bytes:
        """The response body."""
        return json.dumps({"error": self._error}).encode()


@dataclass(frozen=True, slots=True)
class CallKind:
    """One of the two generating endpoints.

    Attributes:
        path: below an engine's base URL.
        prompt: the field that holds the prompt.
    """

    path: str
    prompt: str


KINDS = (CallKind("/chat/completions", "messages"), CallKind("/completions", "prompt"))


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client.

    Attributes:
        body: what is passed on, without the program's identity and without ``priority``, which is
            the scheduler's to set.
        model: the name in the request; None when the client named none.
        stream: the client wants a stream.
        wants_usage: the client asked for the usage chunk of a stream.
        program_id: None for a request that is a program of its own.
        workflow: empty when the client did not say.
        stage: empty when the client did not say.
        question_id: of what is asked; empty when the client did not say, as for ``task``.
        system_text: the text of all system and developer messages.
        user_text: the text of all other messages, or the prompt.
        token_ids: prompt tokens that came as ids, which are in neither text.
    """

    kind: CallKind
    body: dict[str, Any]
    model: str | None
    stream: bool
    wants_usage: bool
    program_id: str | None
    workflow: str
    stage: str
    question_id: str
    task: str
    system_text: str
    user_text: str
    token_ids: int


def parse_call(kind: CallKind, raw: bytes, headers: Mapping[str, str]) -> Call:
    """Read one request.

    A program's identity comes from the headers ``X-Program-Id``, ``X-Workflow``, ``X-Stage``,
    ``X-Question-Id`` and ``X-Task``, or else from ``program_id``, ``workflow``, ``stage``,
    ``question_id`` and ``task`` in the body's ``metadata``; those five are not passed on.

    Args:
        kind: the endpoint.
        raw: the request body.
        headers: the request headers, looked up in lower case.

    Raises:
        ApiError: 400, the request is malformed.
    """
    body = read_object(raw)
    stream = _optional(body, "stream", bool, False)
    options = _optional(body, "stream_options", dict, {})
    if options and not stream:
        raise _wrong("stream_options", "is only allowed together with 'stream': true")
    identity = _take_identity(body, headers)
    body.pop("priority", None)
    if body.get(kind.prompt) is None:
        raise _wrong(kind.prompt, "is missing")
    if kind.prompt == "messages":
        (system_text, user_text), token_ids = _read_messages(body["messages"]), 0
    else:
        system_text, (user_text, token_ids) = "", _read_prompt(body["prompt"])
    for text in (system_text, user_text, *identity.values()):
        _check_encodable(text)
    return Call(
        kind=kind,
        body=body,
        model=_optional(body, "model", str, None),
        stream=stream,
        wants_usage=stream and bool(options.get("include_usage")),
        program_id=identity.get("program_id") or None,
        workflow=identity.get("workflow", ""),
        stage=identity.get("stage", ""),
        question_id=identity.get("question_id", ""),
        task=identity.get("task", ""),
        system_text=system_text,
        user_text=user_text,
        token_ids=token_ids,
    )


def read_object(raw: bytes) -> dict[str, Any]:
    """A request body that is a JSON object.

    Raises:
        ApiError: 400, it is not.
    """
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}.") from error
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    return body


def question_text(call: Call) -> str:
    """What a program's first request asks: its last user message, or all that is not system's."""
    for message in reversed(call.body.get("messages", ())):
        if message.get("role") == "user":
            return "\n".join(_texts(message.get("content")))
    return call.user_text


def no_such_model(name: str, serves: str) -> ApiError:
    """The answer to a request for a model that is not one of those in the words ``serves``."""
    return ApiError(
        404,
        f"The model {name[:100]!r} does not exist; {serves}.",
        param="model",
        code="model_not_found",
    )


def upstream_body(call: Call, model: str, priority: int | None) -> bytes:
    """The request as it is sent to an engine: always streaming, always with usage.

    Args:
        call: the client's request.
        model: the name under which the engine serves its model.
        priority: vLLM's request priority, lower first; None for engines that do not take one.
    """
    options = call.body.get("stream_options") if call.wants_usage else None
    body = {
        **call.body,
        "model": model,
        "stream": True,
        "stream_options": {**(options or {}), "include_usage": True},
    }
    if priority is not None:
        body["priority"] = priority
    return json.dumps(body, separators=(",", ":")).encode()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_encodable(text: str) -> None:
    """Refuse a lone surrogate, which JSON can spell but no tokenizer or file can take."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(400, f"The request holds text that is not Unicode: {error}.") from error


def _optional(body: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise _wrong(key, f"must be a {_KIND_NAMES[kind]}")
    return value


def _wrong(param: str, what: str) -> ApiError:
    return ApiError(400, f"'{param}' {what}.", param=param)


def _take_identity(body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    metadata = body.get("metadata")
    given: dict[str, Any] = {}
    if isinstance(metadata, dict):
        given = {key: metadata[key] for key in _IDENTITY if metadata.get(key) is not None}
        # Services that do not know these keys may refuse them.
        body["metadata"] = {k: v for k, v in metadata.items() if k not in _IDENTITY}
        if not body["metadata"]:
            del body["metadata"]
    for key in _IDENTITY:
        if header := headers.get(f"x-{key.replace('_', '-')}"):
            given[key] = header
    for key, value in given.items():
        if not isinstance(value, str) or len(value) > _MAX_IDENTITY_CHARS:
            raise _wrong(f"metadata.{key}", f"must be at most {_MAX_IDENTITY_CHARS} characters")
    return given


def _read_messages(messages: Any) -> tuple[str, str]:
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "must be a list with at least one message")
    system: list[str] = []
    others: list[str] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong(f"messages[{index}]", "must be a JSON object")
        texts = system if message.get("role") in _SYSTEM_ROLES else others
        texts.extend(_texts(message.get("content")))
    return "\n".join(system), "\n".join(others)


def _texts(content: Any) -> list[str]:
    """The texts in a message's content: itself, or its parts of type text."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return [text for text in parts if isinstance(text, str)]


def _read_prompt(prompt: Any) -> tuple[str, int]:
    """The text of a completion prompt, and the number of token ids in it."""
    if isinstance(prompt, str):
        return prompt, 0
    parts: Sequence[Any] = prompt if isinstance(prompt, list) else []
    texts = [part for part in parts if isinstance(part, str)]
    ids = sum(len(part) if isinstance(part, list) else isinstance(part, int) for part in parts)
    return "\n".join(texts), ids

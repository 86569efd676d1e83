"""What was cut into deltas comes back whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.errors import EngineError
from chimera_train.relay.assemble import Assembler
from chimera_train.relay.events import Event

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
HEAD = {"id": "c-1", "created": 1, "model": "m"}


def assemble(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    assembler = Assembler()
    for chunk in chunks:
        assembler.add(Event(b"", chunk))
    return assembler.response()


def chat(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}


def usage_chunk(kind: str) -> dict[str, Any]:
    return {**HEAD, "object": kind, "choices": [], "usage": USAGE}


pieces = st.lists(st.text(max_size=6), min_size=1, max_size=6)


@given(contents=st.lists(pieces, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_interleaved_choices(contents: list[list[str]], order: Any) -> None:
    """Choices' chunks arrive in any interleaving; each one's own stay in order."""
    queues = [
        [chat(i, {"role": "assistant", "content": ""})]
        + [chat(i, {"content": piece}) for piece in texts]
        + [chat(i, {}, finish_reason="stop", stop_reason=None)]
        for i, texts in enumerate(contents)
    ]
    chunks = []
    while any(queues):
        chunks.append(order.choice([queue for queue in queues if queue]).pop(0))
    response = assemble([*chunks, usage_chunk("chat.completion.chunk")])
    assert response == {
        **HEAD,
        "object": "chat.completion",
        "usage": USAGE,
        "choices": [
            {
                "index": i,
                "message": {"role": "assistant", "content": "".join(texts)},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
            for i, texts in enumerate(contents)
        ],
    }


@given(
    calls=st.lists(st.tuples(st.text(min_size=1, max_size=4), pieces), min_size=1, max_size=3),
    content=st.none() | st.text(min_size=1),
)
def test_tool_calls(calls: list[tuple[str, list[str]]], content: str | None) -> None:
    chunks = [chat(0, {"role": "assistant"})]
    if content is not None:
        chunks.append(chat(0, {"content": content}))
    for i, (name, arguments) in enumerate(calls):
        first = {"id": f"call-{i}", "type": "function", "function": {"name": name, "arguments": ""}}
        chunks.append(chat(0, {"tool_calls": [{"index": i, **first}]}))
        chunks += [
            # Some engines repeat the name with every piece.
            chat(0, {"tool_calls": [{"index": i, "function": {"name": name, "arguments": piece}}]})
            for piece in arguments
        ]
    chunks.append(chat(0, {}, finish_reason="tool_calls"))
    (choice,) = assemble(chunks)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": f"call-{i}",
                "type": "function",
                "function": {"name": name, "arguments": "".join(arguments)},
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    }


def test_chat_logprobs_and_reasoning() -> None:
    def token(text: str) -> dict[str, Any]:
        return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}

    chunks = [
        chat(0, {"reasoning": "be"}),
        chat(0, {"reasoning": "cause"}),
        chat(0, {"content": "a"}, logprobs={"content": [token("a")]}),
        chat(0, {"content": "b"}, logprobs={"content": [token("b")]}, finish_reason="length"),
    ]
    before = repr(chunks)
    (choice,) = assemble(chunks)["choices"]
    assert choice["message"]["reasoning"] == "because"
    assert choice["logprobs"] == {"content": [token("a"), token("b")]}
    assert choice["finish_reason"] == "length"
    assert repr(chunks) == before, "the chunks belong to others too"


def test_completions() -> None:
    def text(index: int, text: str, offset: int, finish: str | None = None) -> dict[str, Any]:
        logprobs = {
            "tokens": [text],
            "token_logprobs": [-0.5],
            "top_logprobs": [{text: -0.5}],
            "text_offset": [offset],
        }
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {**HEAD, "object": "text_completion", "choices": [choice]}

    chunks = [text(1, "x", 0, "length"), text(0, "a", 0), text(0, "b", 1, "stop")]
    response = assemble([*chunks, usage_chunk("text_completion")])
    assert response["object"] == "text_completion"
    assert response["usage"] == USAGE
    first, second = response["choices"]
    assert (first["text"], first["finish_reason"]) == ("ab", "stop")
    assert first["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"a": -0.5}, {"b": -0.5}],
        "text_offset": [0, 1],
    }
    assert (second["index"], second["text"], second["finish_reason"]) == (1, "x", "length")


@pytest.mark.parametrize("chunks", [[], [chat(0, {"content": "a"})], [usage_chunk("x")]])
def test_a_stream_that_was_cut_off_is_refused(chunks: list[dict[str, Any]]) -> None:
    with pytest.raises(EngineError, match="before the response was complete"):
        assemble(chunks)

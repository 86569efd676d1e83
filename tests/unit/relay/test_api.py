"""Reading requests: what they say, and that nothing a client sends breaks the reader."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.relay.api import ApiError, Call, CallKind, parse_call, upstream_body

CHAT = CallKind("/chat/completions", "messages")
TEXT = CallKind("/completions", "prompt")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


def parse(body: object, kind: CallKind = CHAT, **headers: str) -> Call:
    names = {f"x-{name.replace('_', '-')}": value for name, value in headers.items()}
    return parse_call(kind, json.dumps(body).encode(), names)


def attempt(kind: CallKind, raw: bytes) -> tuple[Call | None, ApiError | None]:
    try:
        return parse_call(kind, raw, {}), None
    except ApiError as error:
        return None, error


@pytest.mark.parametrize(
    ("messages", "system", "user"),
    [
        ([{"role": "user", "content": "a"}], "", "a"),
        (
            [
                {"role": "system", "content": "s"},
                {"role": "developer", "content": "d"},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "s\nd",
            "a\nb\nc",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": "x"}},
                        {"type": "text", "text": "b"},
                    ],
                }
            ],
            "",
            "a\nb",
        ),
        ([{"role": "assistant", "content": None, "tool_calls": []}, {}], "", ""),
    ],
)
def test_texts_of_messages(messages: list, system: str, user: str) -> None:
    call = parse({"messages": messages})
    assert (call.system_text, call.user_text, call.token_ids) == (system, user, 0)
    assert call.body["messages"] == messages


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [
        ("a", "a", 0),
        (["a", "b"], "a\nb", 0),
        ([1, 2, 3], "", 3),
        ([[1, 2], [3]], "", 3),
        ([], "", 0),
        ({"odd": 1}, "", 0),
    ],
)
def test_prompts(prompt: object, text: str, ids: int) -> None:
    call = parse({"prompt": prompt}, TEXT)
    assert (call.system_text, call.user_text, call.token_ids) == ("", text, ids)


def test_identity_headers_win_over_metadata_and_metadata_keeps_the_rest() -> None:
    metadata = {"program_id": "m", "workflow": "w", "stage": None, "tag": "t"}
    body = {"messages": [{}], "metadata": metadata}
    call = parse(body, program_id="h", stage="s")
    assert (call.program_id, call.workflow, call.stage) == ("h", "w", "s")
    assert call.body["metadata"] == {"tag": "t"}
    assert "metadata" not in parse({"messages": [{}], "metadata": {"stage": "s"}}).body
    assert parse({"messages": [{}], "metadata": ["odd"]}).body["metadata"] == ["odd"]
    anonymous = parse({"messages": [{}]})
    assert (anonymous.program_id, anonymous.workflow, anonymous.stage) == (None, "", "")


def test_long_identities_are_refused() -> None:
    with pytest.raises(ApiError, match="at most 256") as caught:
        parse({"messages": [{}]}, program_id="x" * 257)
    assert caught.value.status == 400


def test_what_is_sent_upstream() -> None:
    body = {
        "messages": [{}],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "priority": 9,
        "x": 1.5,
    }
    sent = json.loads(upstream_body(parse(body), "served", None))
    assert sent == {**{k: v for k, v in body.items() if k != "priority"}, "model": "served"}
    # Usage in every chunk must not appear because we asked for the last one.
    body["stream_options"] = {"include_usage": False, "continuous_usage_stats": True}
    sent = json.loads(upstream_body(parse(body), "served", -3))
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["priority"] == -3


@given(
    st.dictionaries(
        st.sampled_from(
            ["model", "messages", "prompt", "stream", "stream_options", "metadata", "priority", "z"]
        ),
        json_values,
    ),
    st.sampled_from([CHAT, TEXT]),
)
def test_any_object_is_read_or_refused(body: dict, kind: CallKind) -> None:
    call, error = attempt(kind, json.dumps(body).encode())
    if call is not None:
        json.loads(upstream_body(call, "m", 1))
    else:
        assert error.status in (400, 404)
        assert json.loads(error.body())["error"]["message"]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    call, error = attempt(CHAT, raw)
    assert call is not None or error.status in (400, 404)

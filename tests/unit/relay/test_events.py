"""Events are cut where they end, whatever the chunks, and nothing of the bytes is lost."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.relay.events import Event, EventSplitter, StreamObserver, read_event

LINE_ENDS = (b"\n", b"\r\n", b"\r")


def split(chunks: list[bytes]) -> list[Event]:
    splitter = EventSplitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events + splitter.flush()


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    bounds = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def chunk(**choice: object) -> dict[str, object]:
    return {"choices": [choice]}


@given(
    payloads=st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), max_size=6),
    line_end=st.sampled_from(LINE_ENDS),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_any_cut_gives_the_same_events_and_all_bytes(payloads, line_end, cuts) -> None:
    events = [
        b"data: " + json.dumps(payload, ensure_ascii=False).encode() + 2 * line_end
        for payload in payloads
    ]
    data = b"".join(events)
    found = split(cut(data, cuts))
    assert b"".join(event.raw for event in found) == data
    assert [event.payload for event in found] == payloads
    assert [event.raw for event in found] == events


@given(st.lists(st.binary(max_size=8)), st.lists(st.integers(0, 100), max_size=8))
def test_arbitrary_bytes_pass_unchanged_and_cuts_do_not_matter(parts, cuts) -> None:
    # Dense in what is special, so that terminators are cut in every way.
    data = b"".join(parts).translate(bytes(b"\r\n\n\rd:{}"[byte % 8] for byte in range(256)))
    whole = split([data])
    assert b"".join(event.raw for event in whole) == data
    assert split(cut(data, cuts)) == whole


def test_an_event_is_there_as_soon_as_its_last_byte_is() -> None:
    for line_end in (b"\n", b"\r\n"):
        splitter = EventSplitter()
        data = b'data: {"a": 1}' + 2 * line_end
        assert [splitter.feed(data[i : i + 1]) for i in range(len(data))][:-1] == [[]] * (
            len(data) - 1
        )
        assert splitter.flush() == []


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (b'data: {"a": 1}\n\n', {"a": 1}),
        (b'data:{"a": 1}\n\n', {"a": 1}),
        (b'event: x\ndata: {"a":\ndata: 1}\nid: 3\n\n', {"a": 1}),
        (b"data: [DONE]\n\n", None),
        (b": keep-alive\n\n", None),
        (b'data: {"a": \n\n', None),
        (b'data: "text"\n\n', None),
        (b"data: {\xff}\n\n", None),
        (b"\n\n", None),
    ],
)
def test_payloads(raw: bytes, payload: object) -> None:
    event = read_event(raw)
    assert event == Event(raw, payload)
    assert not event.only_usage
    assert event.new_tokens == 0


@pytest.mark.parametrize(
    ("payload", "tokens"),
    [
        (chunk(index=0, delta={"role": "assistant", "content": ""}), 0),
        (chunk(index=0, delta={"content": "a"}), 1),
        (chunk(index=0, delta={"reasoning_content": "a"}), 1),
        (chunk(index=0, delta={"tool_calls": [{"index": 0}]}), 1),
        (chunk(index=0, delta={}, finish_reason="stop"), 0),
        (chunk(index=0, delta=None), 0),
        (chunk(index=0, text="a"), 1),
        (chunk(index=0, text="", finish_reason="stop"), 0),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, 2),
        ({"choices": []}, 0),
        ({"choices": None}, 0),
        ({"choices": ["a"]}, 0),
    ],
)
def test_tokens_in_a_chunk(payload: dict[str, object], tokens: int) -> None:
    assert Event(b"", payload).new_tokens == tokens


def test_what_a_stream_shows() -> None:
    observer = StreamObserver()
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    observer.see(Event(b"", chunk(index=0, delta={"role": "assistant"})), 1.0)
    assert observer.first_token_ms is None
    for now_ms in (2.0, 3.0):
        assert observer.see(Event(b"", chunk(index=0, delta={"content": "a"})), now_ms) == 1
    assert observer.first_token_ms == 2.0
    assert (observer.output_tokens, observer.prompt_tokens) == (2, None)
    # One of the chunks held two tokens.
    assert observer.see(Event(b"", {"choices": [], "usage": usage}), 4.0) == 1
    assert observer.see(Event(b"", {"choices": [], "usage": usage}), 4.0) == 0
    assert (observer.output_tokens, observer.prompt_tokens) == (3, 7)
    assert observer.error is None


def test_usage_and_errors_of_a_whole_body() -> None:
    observer = StreamObserver()
    observer.see_body(b'{"choices": [{"text": "a b"}], "usage": {"completion_tokens": 2}}')
    assert observer.output_tokens == 2
    observer.see_body(b'{"error": {"message": "no"}}')
    assert observer.error == {"message": "no"}
    observer.see_body(b"<html>")
    assert observer.error is None


def test_an_error_in_a_stream_is_seen_in_either_form() -> None:
    assert Event(b"", {"error": {"message": "no"}}).error == {"message": "no"}
    assert Event(b"", {"error": "no"}).error == {"message": "no"}

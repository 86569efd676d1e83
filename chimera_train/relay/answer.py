"""Passing an engine's answer on to a client, and seeing what it says on the way."""

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from chimera_train.errors import EngineError
from chimera_train.relay.api import ApiError, Call
from chimera_train.relay.assemble import Assembler
from chimera_train.relay.events import StreamObserver
from chimera_train.relay.reply import Reply
from chimera_train.relay.upstream import Headers, Upstream

__all__ = ["Answer", "pass_on"]


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer that has arrived to its end, though the client lacks its last part yet.

    Attributes:
        status: HTTP status.
        headers: end-to-end ones.
        body: what is still to be sent: all of it, or nothing if it was streamed.
        error: why it is not the answer that was asked for; None if it is.
    """

    status: int
    headers: Headers
    body: bytes | dict[str, Any] | None
    error: str | None

    async def finish(self, reply: Reply) -> None:
        """Send what the client lacks."""
        if self.body is None:
            await reply.finish()
        elif isinstance(self.body, bytes):
            await reply.whole(self.status, self.body, self.headers)
        else:
            await reply.json(self.status, self.body, self.headers)


async def pass_on(
    call: Call,
    upstream: Upstream,
    reply: Reply,
    observer: StreamObserver,
    clock: Callable[[], float],
    *,
    assembler: Assembler | None = None,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> Answer:
    """Relay a response to a client that streams as it comes; for another, put it together.

    Args:
        call: what was asked.
        upstream: the engine's response.
        reply: takes the pieces.
        observer: sees every event, or the whole body.
        clock: the present in ms.
        assembler: takes every event, also where the client streams; None: only where it does not.
        on_tokens: called with the number of output tokens that have just come.

    Raises:
        EngineError: the connection broke.
        ApiError: the engine ended its stream early, and the client was to have it whole.
    """
    if not upstream.streams:  # an error, or a request that the engine cannot stream
        body = await upstream.body()
        observer.see_body(body)
        refused = upstream.status >= 400
        error = f"the engine answered with status {upstream.status}" if refused else None
        return Answer(upstream.status, upstream.headers, body, error)
    if assembler is None and not call.stream:
        assembler = Assembler()
    async with aclosing(upstream.events()) as arrivals:
        async for events in arrivals:
            now_ms = clock()
            if tokens := sum(observer.see(event, now_ms) for event in events):
                on_tokens(tokens)
            if assembler is not None:
                for event in events:
                    assembler.add(event)
            if not call.stream:
                continue
            shown = [e.raw for e in events if call.wants_usage or not e.only_usage]
            if shown:
                await reply.write(b"".join(shown), upstream.headers)
    failure = observer.error
    error = None if failure is None else str(failure.get("message"))
    if call.stream or assembler is None:
        return Answer(upstream.status, upstream.headers, None, error)
    status, value = _whole_response(assembler, failure, observer.error_status)
    return Answer(status, upstream.headers, value, error)


def _whole_response(
    assembler: Assembler, error: dict[str, Any] | None, error_status: int
) -> tuple[int, dict[str, Any]]:
    """Status and body of the response that a stream adds up to.

    Raises:
        ApiError: the stream ended early.
    """
    if error is not None:
        return error_status if 400 <= error_status < 600 else 502, {"error": error}
    try:
        return 200, assembler.response()
    except EngineError as cut_off:
        raise ApiError(502, str(cut_off), kind="server_error") from cut_off

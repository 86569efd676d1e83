"""One streamed request of several prompts, and when each of their tokens arrives."""

import time
from collections.abc import Sequence

import openai

from chimera_train.collect.request import Endpoint
from chimera_train.errors import EngineError
from chimera_train.relay.events import EventSplitter

__all__ = ["stream_tokens"]


async def stream_tokens(
    endpoint: Endpoint,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    times: Sequence[list[float]],
) -> float:
    """Send ``prompts`` of token ids in one request; returns when, in s of ``time.perf_counter``.

    ``times`` has a list for each prompt, which grows by the time of each token as it arrives, to
    ``output_tokens``.

    Raises:
        EngineError: the stream failed, or did not bring the tokens.
        openai.APIError, httpx2.TransportError: the request failed.
    """
    try:
        sent_s = await _stream(endpoint, prompts, output_tokens, times)
    except openai.APIConnectionError:
        if any(times):
            raise
        # A connection that had been idle, which the server was just closing.
        sent_s = await _stream(endpoint, prompts, output_tokens, times)
    if any(len(arrived) != output_tokens for arrived in times):
        raise EngineError(
            f"The engine streamed {[len(arrived) for arrived in times]} tokens with their usage"
            f" where {output_tokens} each were asked for: timing them takes a vLLM that knows"
            " ignore_eos and continuous_usage_stats."
        )
    return sent_s


async def _stream(
    endpoint: Endpoint,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    times: Sequence[list[float]],
) -> float:
    sent_s = time.perf_counter()
    # The raw stream: the client's own parser costs 0.2 ms a token.
    async with endpoint.client.completions.with_streaming_response.create(
        model=endpoint.model,
        prompt=prompts,
        max_tokens=output_tokens,
        stream=True,
        # vLLM puts the tokens of a client that it is ahead of into one event: usage counts them.
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"ignore_eos": True},
    ) as response:
        splitter = EventSplitter()
        async for data in response.iter_bytes():
            now_s = time.perf_counter()
            for event in splitter.feed(data):
                if event.error is not None:
                    raise EngineError(f"The engine broke a stream off: {event.error}.")
                for choice in event.choices:
                    arrived = times[choice["index"]]
                    total = (event.usage or {}).get("completion_tokens", 0)
                    arrived.extend([now_s] * (total - len(arrived)))
    return sent_s

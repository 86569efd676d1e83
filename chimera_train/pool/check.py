"""Whether a pool works: every engine started or reached, and one short completion from each."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2

from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.probe import http_client, served_models, vllm_version
from chimera_train.pool.schema import Pool

__all__ = ["CheckedEngine", "check_pool"]

_PROMPT = "What is two plus two?"
_MAX_TOKENS = 8
# The first request of an engine may compile kernels.
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class CheckedEngine:
    """What an engine answered.

    Attributes:
        name: of the engine.
        model: of the pool file.
        served_model: the model's name in requests.
        base_url: of its API.
        ready_s: seconds from start to readiness; None if it was not started here, as for ``log``.
        ttft_ms: from the request to its first token; the first request of a new engine.
        latency_ms: from the request to its last token.
        output_tokens: that the engine says it generated.
        vllm_version: None if the endpoint is not vLLM.
        max_model_len: context in tokens; None where the engine does not say.
        log: the path of what the server printed.
    """

    name: str
    model: str
    served_model: str
    base_url: str
    ready_s: float | None
    ttft_ms: float
    latency_ms: float
    output_tokens: int
    vllm_version: str | None
    max_model_len: int | None
    log: str | None


def check_pool(pool: Pool, *, log_dir: Path, output: Output) -> list[CheckedEngine]:
    """Start or reach every engine, ask each for a short completion, and stop what was started.

    Raises:
        ConfigError: as :func:`chimera_train.pool.launch.running_pool`.
        EngineError: likewise, or an engine does not complete the request.
    """
    with running_pool(pool, log_dir=log_dir, output=output) as engines:
        return [_check(engine) for engine in engines]


def _check(engine: RunningEngine) -> CheckedEngine:
    try:
        ttft_ms, latency_ms, output_tokens = _complete(engine)
    except httpx2.HTTPStatusError as error:
        raise EngineError(
            f"Engine '{engine.spec.name}' answered a chat completion with status "
            f"{error.response.status_code}: {error.response.text.strip()}"
        ) from error
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        engine.check_alive()
        raise EngineError(
            f"Engine '{engine.spec.name}' at {engine.base_url} did not complete a chat "
            f"completion: {error!r}."
        ) from error
    models = served_models(engine.base_url, engine.spec.name, engine.api_key)
    return CheckedEngine(
        name=engine.spec.name,
        model=engine.spec.model,
        served_model=engine.served_model,
        base_url=engine.base_url,
        ready_s=engine.ready_s,
        ttft_ms=ttft_ms,
        latency_ms=latency_ms,
        output_tokens=output_tokens,
        vllm_version=vllm_version(engine.base_url),
        max_model_len=models.get(engine.served_model),
        log=str(engine.log_path) if engine.log_path is not None else None,
    )


def _complete(engine: RunningEngine) -> tuple[float, float, int]:
    """TTFT and latency in ms, and output tokens, of one streamed chat completion."""
    request = {
        "model": engine.served_model,
        "messages": [{"role": "user", "content": _PROMPT}],
        "max_tokens": _MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start = time.monotonic()
    ttft_ms, output_tokens = None, None
    with (
        http_client(engine.base_url, timeout_s=_TIMEOUT_S, api_key=engine.api_key) as client,
        client.stream("POST", "chat/completions", json=request) as response,
    ):
        if response.is_error:
            response.read()
            response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            # vLLM's first chunk only names the role.
            if ttft_ms is None and any(c["delta"].get("content") for c in chunk["choices"]):
                ttft_ms = (time.monotonic() - start) * 1000
            if chunk.get("usage"):
                output_tokens = int(chunk["usage"]["completion_tokens"])
    latency_ms = (time.monotonic() - start) * 1000
    if ttft_ms is None or output_tokens is None:
        raise ValueError("the stream held no text or no token count")
    return ttft_ms, latency_ms, output_tokens

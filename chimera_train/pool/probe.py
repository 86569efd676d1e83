"""Questions that an OpenAI-compatible engine answers over HTTP about itself."""

from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from chimera_train.errors import EngineError
from chimera_train.pool.address import may_use_proxy

__all__ = ["http_client", "is_healthy", "metric_samples", "served_models", "vllm_version"]

_TIMEOUT_S = 5.0


def http_client(
    base_url: str, *, timeout_s: float = _TIMEOUT_S, api_key: str | None = None
) -> httpx2.Client:
    """A client for paths below ``base_url``; it never uses a proxy for loopback."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    return httpx2.Client(
        base_url=base_url, timeout=timeout_s, trust_env=may_use_proxy(base_url), headers=headers
    )


def is_healthy(client: httpx2.Client, base_url: str) -> bool:
    """Whether vLLM's ``/health``, beside ``/v1``, answers 200 now."""
    try:
        return client.get(base_url.removesuffix("/v1") + "/health").is_success
    except httpx2.TransportError:
        return False


def served_models(base_url: str, engine: str, api_key: str | None = None) -> dict[str, int | None]:
    """The models an engine serves and their maximum context in tokens, where it says so.

    Args:
        base_url: of the engine's API.
        engine: its name, for messages.
        api_key: that it asks for.

    Raises:
        EngineError: it cannot be reached, or its answer is not a list of models.
    """
    try:
        with http_client(base_url, api_key=api_key) as client:
            answer: Any = client.get("models").raise_for_status().json()
        return {entry["id"]: entry.get("max_model_len") for entry in answer["data"]}
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        wrong = "api_key_env" if status in {401, 403} else "base_url"
        raise EngineError(
            f"Engine '{engine}' answered {error.request.url} with status {status}: check its"
            f" {wrong}."
        ) from error
    except httpx2.HTTPError as error:
        raise EngineError(
            f"Engine '{engine}' cannot be reached at {base_url} ({error}): is it running?"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(
            f"Engine '{engine}' did not answer {base_url}/models with a list of models: check its "
            "base_url."
        ) from error


def vllm_version(base_url: str) -> str | None:
    """The version in vLLM's ``/version``; None for an endpoint that is not vLLM."""
    with http_client(base_url) as client:
        try:
            return str(client.get("../version").raise_for_status().json()["version"])
        except (httpx2.HTTPError, ValueError, KeyError, TypeError):
            return None


def metric_samples(base_url: str, engine: str) -> list[Sample]:
    """What vLLM's ``/metrics``, beside ``/v1``, says now; each sample has name, labels and value.

    Args:
        base_url: of the engine's API.
        engine: its name, for messages.

    Raises:
        EngineError: it cannot be reached, or answers something else.
    """
    try:
        with http_client(base_url) as client:
            text = client.get("../metrics").raise_for_status().text
        return [s for family in text_string_to_metric_families(text) for s in family.samples]
    except httpx2.HTTPStatusError as error:
        raise EngineError(
            f"Engine '{engine}' answered {error.request.url} with status"
            f" {error.response.status_code}: is it a vLLM server?"
        ) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise EngineError(
            f"Engine '{engine}' does not show its metrics beside {base_url} ({error}): is it a vLLM"
            " server?"
        ) from error

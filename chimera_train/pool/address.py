"""Where an engine that runs already is, and the key that it asks for."""

import os
from urllib.parse import urlsplit

from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineSpec

__all__ = ["api_key", "api_url", "is_key", "may_use_proxy"]


def api_url(spec: EngineSpec) -> str:
    """The ``base_url`` of an engine that already runs, without a trailing slash.

    Raises:
        ConfigError: it is not the URL of an OpenAI-compatible API.
    """
    base_url = (spec.base_url or "").rstrip("/")
    if not base_url.startswith(("http://", "https://")) or not base_url.endswith("/v1"):
        raise ConfigError(
            f"Engine '{spec.name}': base_url '{spec.base_url}' must look like http://HOST:PORT/v1."
        )
    return base_url


def api_key(spec: EngineSpec) -> str | None:
    """The key that an engine asks for, out of the environment; None if it asks for none.

    Raises:
        ConfigError: the variable is not set, or holds what no header can.
    """
    if spec.api_key_env is None:
        return None
    key = os.environ.get(spec.api_key_env, "")
    if not is_key(key):
        raise ConfigError(
            f"Engine '{spec.name}' takes its key from the environment variable {spec.api_key_env},"
            " which is not set to one word: export it, or edit api_key_env in the pool file."
        )
    return key


def is_key(text: str) -> bool:
    """Whether ``text`` can be an API key: one word of printable ASCII."""
    return text.isascii() and text.isprintable() and len(text.split()) == 1


def may_use_proxy(url: str) -> bool:
    """Whether a proxy of the environment may be used for ``url``: none leads to this machine."""
    return urlsplit(url).hostname not in {"127.0.0.1", "localhost", "::1"}

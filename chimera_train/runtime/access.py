"""Who may ask the gateway: API keys, and how large the head of a request may be."""

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from chimera_train.errors import ConfigError
from chimera_train.pool.address import is_key
from chimera_train.relay.api import ApiError
from chimera_train.relay.endpoint import error_response

__all__ = ["ApiKeys", "Guard", "read_api_keys"]

_VARIABLE = "CHIMERA_API_KEYS"
# Probes and Prometheus have no key; what they are shown holds nothing of a client's.
_OPEN = frozenset({"/health", "/ready", "/metrics"})


class ApiKeys:
    """The keys that are accepted; none at all accepts everybody.

    Only digests are kept, which have one length and lead to no key, wherever they may appear.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, headers: Headers) -> bool:
        """Whether ``headers`` hold ``Authorization: Bearer KEY``, once, with one of the keys.

        Takes the same time for every key that is given.
        """
        given = headers.getlist("authorization")
        scheme, _, key = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        digest = _digest(key.strip())
        found = sum(hmac.compare_digest(digest, each) for each in self._digests)
        return scheme.lower() == "bearer" and found > 0


class Guard:
    """Turns requests away before anything looks at them.

    Args:
        app: answers the others.
        keys: one of which every request needs, but those of probes and for metrics.
        header_limit_bytes: the largest request line and headers together.
        on_refused: called with the status of the answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        header_limit_bytes: int,
        on_refused: Callable[[int], None],
    ) -> None:
        self._app = app
        self._keys = keys
        self._header_limit_bytes = header_limit_bytes
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        self._on_refused(error.status)
        await error_response(error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        if size > self._header_limit_bytes:
            limit = self._header_limit_bytes
            return ApiError(431, f"The request line and headers are larger than {limit} bytes.")
        if scope["path"] in _OPEN or not self._keys or self._keys.accept(Headers(scope=scope)):
            return None
        return ApiError(
            401,
            "The request needs the header 'Authorization: Bearer KEY' with a key of this gateway.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )


def read_api_keys(path: Path | None) -> ApiKeys:
    """The keys in a file, or else those in the environment variable ``CHIMERA_API_KEYS``.

    The file has one key a line; the rest of a line after ``#`` is a comment. The variable has them
    separated by white space or commas.

    Raises:
        ConfigError: the file cannot be read, has a line that is no key, or has none; the message
            has no key in it.
    """
    if path is None:
        keys = os.environ.get(_VARIABLE, "").replace(",", " ").split()
        if not all(map(is_key, keys)):
            raise ConfigError(f"{_VARIABLE} holds what is no key: use printable ASCII.")
        return ApiKeys(keys)
    keys = list(_keys_in(path))
    if not keys:
        raise ConfigError(f"{path} holds no key: write one a line, or leave --api-keys out.")
    return ApiKeys(keys)


def _keys_in(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"The API keys in {path} cannot be read: {reason}.") from error
    for number, line in enumerate(lines, start=1):
        key = line.partition("#")[0].strip()
        if key and not is_key(key):
            raise ConfigError(f"{path}:{number}: a key must be one word of printable ASCII.")
        if key:
            yield key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()

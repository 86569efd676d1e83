"""Why the gateway turns a request down, and when to come back."""

import math

from chimera_train.relay.api import ApiError

__all__ = ["draining", "engine_unavailable", "queue_full"]

_LONGEST_WAIT_S = 60


def draining() -> ApiError:
    """The gateway stops."""
    return _unavailable(503, "The gateway is stopping: ask another one.", "draining", 1)


def engine_unavailable(status: int, reason: str, wait_s: int) -> ApiError:
    """No engine is up (503), or one went away once too often (502)."""
    return _unavailable(status, reason, "engine_unavailable", wait_s)


def queue_full(waiting: int, least_load_ms: float) -> ApiError:
    """Too many requests wait; by the end of ``least_load_ms`` one engine is through with its."""
    wait_s = min(_LONGEST_WAIT_S, max(1, math.ceil(least_load_ms / 1000)))
    return ApiError(
        429,
        f"{waiting} requests are waiting already; try again later.",
        kind="rate_limit_error",
        code="queue_full",
        headers={"retry-after": str(wait_s)},
    )


def _unavailable(status: int, message: str, code: str, wait_s: int) -> ApiError:
    headers = {"retry-after": str(wait_s)}
    return ApiError(status, message, kind="server_error", code=code, headers=headers)

"""Telling a request that failed from an engine that died."""

import time

from chimera_train.errors import EngineError
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.probe import http_client, is_healthy, served_models

__all__ = ["require_alive"]

# From the death of vLLM's engine process to the end of its server, on a busy CPU.
_EXIT_S = 20.0
_POLL_S = 0.5


def require_alive(engine: RunningEngine) -> None:
    """Return if ``engine`` still answers; waits for a dying one to end, so that its log is whole.

    Raises:
        EngineError: it does not answer; the last lines of its log are in the message if it was
            started here.
    """
    engine.check_alive()
    if engine.spec.launch is None:
        served_models(engine.base_url, engine.spec.name, engine.api_key)
        return
    deadline = time.monotonic() + _EXIT_S
    with http_client(engine.base_url) as client:
        while not is_healthy(client, engine.base_url):
            engine.check_alive()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"Engine '{engine.spec.name}' has not answered its health check for"
                    f" {_EXIT_S:g} s: see its log {engine.log_path}."
                )
            time.sleep(_POLL_S)

"""An engine that programs run on: noticing that it was lost, and having it back."""

import asyncio
import time

from chimera_train.collect.alive import require_alive
from chimera_train.collect.gate import PATIENCE_S
from chimera_train.collect.request import Endpoint
from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.probe import http_client, is_healthy

__all__ = ["Station"]

# In a row, without one program finished in between: then it is not chance.
_MAX_LOSSES = 3
# An engine that somebody else runs may be moved to another machine, or be waited for in a queue.
_PATIENCE_S = 600.0
_POLL_S = 1.0


class Station:
    """One engine and the endpoint to it; for one event loop.

    Attributes:
        generation: grows whenever the engine is back.
    """

    def __init__(self, engine: RunningEngine, endpoint: Endpoint, output: Output) -> None:
        self.engine = engine
        self.endpoint = endpoint
        self.generation = 0
        self._output = output
        self._lock = asyncio.Lock()
        self._losses = 0
        self._gone: EngineError | None = None

    def served(self) -> None:
        """The engine has finished a program."""
        self._losses = 0

    async def is_intact(self, generation: int) -> bool:
        """After a failure: whether the engine answers, and has done so since ``generation``.

        If it is lost it is started again, where it was started here, or waited for; returns once
        it is back.

        Raises:
            EngineError: it does not come back, or answers but serves nothing.
        """
        async with self._lock:
            if self._gone is None and self.endpoint.gate is not None and self.endpoint.gate.is_shut:
                self._gone = EngineError(
                    f"Engine '{self.engine.spec.name}' refuses all requests (429 or 503), or asks"
                    f" for {PATIENCE_S:g} s and more without any: see why, and run the same command"
                    " again."
                )
            if self._gone is not None:
                raise self._gone
            if generation != self.generation:
                return False
            try:
                await asyncio.to_thread(require_alive, self.engine)
                return True
            except EngineError as error:
                try:
                    await self._bring_back(error)
                except EngineError as last:
                    self._gone = last
                    raise
            self.generation += 1
            return False

    async def _bring_back(self, error: EngineError) -> None:
        while True:
            self._losses += 1
            if self._losses > _MAX_LOSSES:
                raise EngineError(
                    f"{error} It was lost {self._losses} times without finishing a program in"
                    " between."
                ) from error
            try:
                if self.engine.spec.launch is None:
                    await self._await_return(error)
                else:
                    await self._restart(self.engine.spec.launch.ready_timeout_s, error)
                return
            except EngineError as again:
                if self.engine.spec.launch is None:
                    raise
                error = again

    async def _restart(self, timeout_s: float, error: EngineError) -> None:
        name = self.engine.spec.name
        self._output.warn(f"{_without_log(error)} It is started again.")
        await asyncio.to_thread(self.engine.restart)
        start = time.monotonic()
        with http_client(self.engine.base_url) as client:
            while not await asyncio.to_thread(is_healthy, client, self.engine.base_url):
                self.engine.check_alive()
                if time.monotonic() - start > timeout_s:
                    raise EngineError(
                        f"Engine '{name}' was not ready {timeout_s:g} s after it was started again:"
                        f" see its log {self.engine.log_path}."
                    )
                await asyncio.sleep(_POLL_S)
        self._output.info(f"{name} is back after {time.monotonic() - start:.0f} s")

    async def _await_return(self, error: EngineError) -> None:
        self._output.warn(f"{_without_log(error)} It is waited for.")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                return await asyncio.to_thread(require_alive, self.engine)
            except EngineError:
                if time.monotonic() > deadline:
                    raise


def _without_log(error: EngineError) -> str:
    """What happened, without the lines of the log that say why."""
    return str(error).partition(" Its log")[0].splitlines()[0]

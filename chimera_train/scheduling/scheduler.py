"""The scheduler: decides an engine for every request and keeps a queue in front of each engine.

It does no I/O and reads no clock; the simulator and the gateway call it with the same events:

    admit      a stage's call arrives: choose its engine (a known program keeps its own), queue it
    pop        a slot is free at an engine: which request goes next
    on_tokens, on_complete, on_fail, on_program_end, on_engine_down, on_engine_up
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.errors import EngineError
from chimera_train.scheduling.baselines import fewest_requests, next_in_turn
from chimera_train.scheduling.chimera import choose_engine
from chimera_train.scheduling.model import Decision, EngineProfile, Request
from chimera_train.scheduling.monitor import ActivityMonitor
from chimera_train.scheduling.policy import PolicySettings, RoundRobin, ShortestQueue
from chimera_train.scheduling.queueing import EngineQueue

__all__ = ["Scheduler"]

_MAX_PRIORITY = 2**31 - 1


@dataclass(slots=True)
class _Live:
    program_id: str
    engine: int
    running: bool


class Scheduler:
    """One policy over a fixed list of engines, which callers name by their index in it.

    Args:
        engines: at least one; their ``decode_ms_per_token`` and ``max_batch_size`` make loads
            comparable.
        policy: chooses engines and orders queues.
    """

    def __init__(self, engines: Sequence[EngineProfile], policy: PolicySettings) -> None:
        if not engines:
            raise ValueError("a scheduler needs at least one engine")
        n = len(engines)
        self._policy = policy
        # L of one token in flight: a step makes max_batch_size tokens in decode_ms_per_token.
        self._ms_per_token = np.array([e.decode_ms_per_token / e.max_batch_size for e in engines])
        self._window = [policy.window or e.max_batch_size for e in engines]
        self._up = np.ones(n, dtype=np.bool_)
        self._queues = [EngineQueue(policy.aging) for _ in engines]
        self._outstanding = np.zeros(n, dtype=np.int64)
        self._monitor = ActivityMonitor(n)
        self._live: dict[int, _Live] = {}
        self._last = n - 1

    @property
    def needs_confidence(self) -> bool:
        """Whether a new program's request must carry q."""
        return self._policy.needs_confidence

    @property
    def needs_lengths(self) -> bool:
        """Whether ŷ has any influence."""
        return self._policy.needs_lengths

    def engine_of(self, program_id: str) -> int | None:
        """The engine of a program; None if it is new, has ended, or lost its engine."""
        return self._monitor.engine_of(program_id)

    def load_ms(self) -> npt.NDArray[np.float64]:
        """L, shape (n_engines,): ms that the predicted tokens in flight will take (§3.5)."""
        return self._monitor.in_flight_tokens * self._ms_per_token

    def outstanding(self, engine: int) -> int:
        """Requests popped for ``engine`` and neither complete nor failed."""
        return int(self._outstanding[engine])

    def queued(self, engine: int) -> int:
        """Requests waiting here for ``engine``."""
        return len(self._queues[engine])

    def admit(self, request: Request, now_ms: float) -> Decision:  # noqa: ARG002
        """Choose an engine for ``request`` and queue it there.

        ``now_ms`` is part of the protocol for policies that look at time; these do not.

        Raises:
            EngineError: no engine is up.
            ValueError: the id is already live, or a prediction is absent, of a wrong shape,
                negative or not finite.
        """
        if request.request_id in self._live:
            raise ValueError(f"request {request.request_id} is already live")
        tokens = request.remaining_tokens
        if tokens.shape != self._up.shape or not np.isfinite(tokens).all() or tokens.min() < 0:
            raise ValueError(f"remaining_tokens must be {self._up.size} finite values >= 0")
        known = self._monitor.engine_of(request.program_id)
        if known is not None:
            engine, reason, load_ms = known, "known_program", self.load_ms()
        elif self._up.any():
            engine, reason, load_ms = self._choose(request)
            self._last = engine
        else:
            raise EngineError("No engine of the pool is up: look at the engines' logs.")

        remaining = round(tokens[engine])
        key = remaining if self._policy.order == "stjf" else 0
        self._monitor.place(request.program_id, engine, remaining)
        self._queues[engine].add(request.request_id, key)
        self._live[request.request_id] = _Live(request.program_id, engine, running=False)
        return Decision(engine, min(key, _MAX_PRIORITY), reason, load_ms)

    def pop(self, engine: int, now_ms: float) -> int | None:  # noqa: ARG002
        """The request to send to ``engine`` now; None if its window is full or nobody waits."""
        if self._outstanding[engine] >= self._window[engine] or not self._queues[engine]:
            return None
        request_id = self._queues[engine].pop()
        self._outstanding[engine] += 1
        self._live[request_id].running = True
        return request_id

    def on_tokens(self, request_id: int, n: int) -> None:
        """``n`` more output tokens of a request came."""
        live = self._live[request_id]
        self._monitor.stream(live.program_id, live.engine, n)

    def on_complete(self, request_id: int) -> None:
        """A running request is done; its program keeps its engine and remaining length."""
        self._end(request_id)

    def on_fail(self, request_id: int) -> None:
        """A request, queued or running, will not complete; its program's load is cleared."""
        live = self._end(request_id)
        self._monitor.clear(live.program_id, live.engine)

    def on_program_end(self, program_id: str) -> None:
        """A program has ended, after its requests completed or failed; unknown ones are ignored."""
        self._monitor.forget(program_id)

    def on_engine_down(self, engine: int) -> list[int]:
        """Stop using an engine; its programs lose it.

        Its running requests stay outstanding until the caller reports them failed.

        Returns:
            Ids of the requests that waited for it, in order of arrival, to be admitted again (with
            q where ``needs_confidence``): they are live no more.
        """
        self._up[engine] = False
        requests = self._queues[engine].drain()
        for request_id in requests:
            del self._live[request_id]
        self._monitor.evict(engine)
        return requests

    def on_engine_up(self, engine: int) -> None:
        """Use an engine again."""
        self._up[engine] = True

    def _choose(self, request: Request) -> tuple[int, str, npt.NDArray[np.float64]]:
        load_ms = self.load_ms()
        policy = self._policy
        if isinstance(policy, RoundRobin):
            return next_in_turn(self._up, self._last), "in_turn", load_ms
        if isinstance(policy, ShortestQueue):
            n_requests = self._outstanding + [len(queue) for queue in self._queues]
            return fewest_requests(n_requests, self._up, self._last), "shortest_queue", load_ms
        if request.confidence is None or request.confidence.shape != self._up.shape:
            raise ValueError(f"a new program needs confidence, {self._up.size} values")
        if policy.load == "inflight+self":
            load_ms += request.remaining_tokens * self._ms_per_token
        engine, upgraded = choose_engine(
            load_ms,
            request.confidence,
            self._up,
            policy.tau,
            policy.delta_s,
            policy.upgrade == "margin",
        )
        return engine, "upgrade" if upgraded else "fastest", load_ms

    def _end(self, request_id: int) -> _Live:
        live = self._live.pop(request_id)
        if live.running:
            self._outstanding[live.engine] -= 1
        else:
            self._queues[live.engine].remove(request_id)
        return live

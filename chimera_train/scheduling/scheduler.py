"""The scheduler: decides an engine for every request and keeps a queue in front of each engine.

It does no I/O and reads no clock. The decisions and the state are those of ``core``, which the
simulator calls directly; here are names for programs and requests, and checks of what comes in.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from chimera_train.errors import ConfigError, EngineError
from chimera_train.scheduling import core
from chimera_train.scheduling.model import Decision, EngineProfile, Request
from chimera_train.scheduling.policy import (
    NO_ESTIMATE,
    SERVED_ORDERS,
    UTILITY,
    PolicySettings,
)
from chimera_train.scheduling.state import (
    NOWHERE,
    empty_state,
    with_program_slots,
    with_request_slots,
)

__all__ = ["MAX_PRIORITY", "Scheduler", "scheduler_arguments"]

MAX_PRIORITY = 2**31 - 1
"""The largest value of vLLM's ``priority`` field."""

_FIRST_SLOTS = 16

_UNSERVED = {
    "sjf": "a bundle has no predictor of single stages",
    "ltr": "a bundle has no ranker",
    "stjf_oracle": "it knows what a program will do",
    "mlfq": "it preempts requests inside the engine, which vLLM does not offer",
}

_Name = TypeVar("_Name", str, int)


def scheduler_arguments(
    engines: Sequence[EngineProfile], policy: PolicySettings
) -> tuple[list[float], list[int]]:
    """``ms_per_token`` and ``window`` of a scheduler's state (§3.5)."""
    # L of one token in flight: a step makes max_batch_size tokens in decode_ms_per_token.
    return (
        [engine.decode_ms_per_token / engine.max_batch_size for engine in engines],
        [policy.window or engine.max_batch_size for engine in engines],
    )


class Scheduler:
    """One policy over a fixed list of engines, which callers name by their index in it.

    Args:
        engines: at least one; their ``decode_ms_per_token`` and ``max_batch_size`` make loads
            comparable.
        policy: chooses engines and orders queues.

    Raises:
        ConfigError: the policy looks at the state of the engines or at prices, or its order at
            what no bundle predicts; only a simulation knows them so far.
    """

    def __init__(self, engines: Sequence[EngineProfile], policy: PolicySettings) -> None:
        if not engines:
            raise ValueError("a scheduler needs at least one engine")
        compiled = policy.compiled()
        if compiled.kind == UTILITY or compiled.estimate != NO_ESTIMATE:
            raise ConfigError(
                f"The policy '{policy.kind}' with these settings can be simulated only: serving it"
                " needs the state of the engines."
            )
        if policy.order not in SERVED_ORDERS:
            raise ConfigError(
                f"The order '{policy.order}' can be simulated only, since"
                f" {_UNSERVED[policy.order]}: serve with {' or '.join(SERVED_ORDERS)}."
            )
        self._policy = policy
        self._compiled = compiled
        self._state = empty_state(
            *scheduler_arguments(engines, policy), programs=_FIRST_SLOTS, requests=_FIRST_SLOTS
        )
        self._programs = _Slots[str](_FIRST_SLOTS)
        self._requests = _Slots[int](_FIRST_SLOTS)

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
        slot = self._programs.get(program_id)
        if slot is None or self._state.program_engine[slot] == NOWHERE:
            return None
        return int(self._state.program_engine[slot])

    def load_ms(self) -> npt.NDArray[np.float64]:
        """L, shape (n_engines,): ms that the predicted tokens in flight will take (§3.5)."""
        return self._state.in_flight_tokens * self._state.ms_per_token

    def outstanding(self, engine: int) -> int:
        """Requests popped for ``engine`` and neither complete nor failed."""
        return int(self._state.outstanding[engine])

    def queued(self, engine: int) -> int:
        """Requests waiting here for ``engine``."""
        return int(self._state.queue_length[engine])

    def admit(self, request: Request, now_ms: float) -> Decision:  # noqa: ARG002
        """Choose an engine for ``request`` and queue it there.

        A program keeps its engine, unless the request is pinned to others: then it moves to the one
        of them that the policy chooses.

        ``now_ms`` is part of the protocol for policies that look at time; these do not.

        Raises:
            EngineError: no engine that may take it is up.
            ValueError: the id is already live, or a prediction is absent, of a wrong shape,
                negative or not finite.
        """
        if self._requests.get(request.request_id) is not None:
            raise ValueError(f"request {request.request_id} is already live")
        state, pinned_to = self._state, request.pinned_to
        shape = state.up.shape
        tokens, overrun = request.remaining_tokens, request.overrun_tokens
        overrun = np.zeros(shape) if overrun is None else overrun
        for told in (tokens, overrun):
            if told.shape != shape or not np.isfinite(told).all() or told.min() < 0:
                raise ValueError(f"remaining_tokens must be {shape[0]} finite values >= 0")
        confidence, may_take = request.confidence, state.up
        if pinned_to is not None:
            may_take = state.up & np.isin(np.arange(state.up.size), pinned_to)
        engine = self.engine_of(request.program_id)
        moves = engine is not None and not may_take[engine]
        if engine is None or moves:
            if not may_take.any():
                raise EngineError("No engine that may take the request is up: look at their logs.")
            is_known = confidence is not None and confidence.shape == shape
            if self.needs_confidence and pinned_to is None and not is_known:
                raise ValueError(f"a new program needs confidence, {shape[0]} values")
        load_ms, unknown = np.empty(shape), np.zeros(shape)
        views = core.Views(
            remaining_tokens=tokens,
            overrun_tokens=overrun,
            order_by=tokens if self._policy.order == "stjf" else unknown,
            confidence=unknown if confidence is None else confidence,
            cost=unknown,
            ttft_ms=unknown,
            completion_ms=unknown,
            load_ms=load_ms,
        )
        program, slot = self._take_slots(request)
        if moves:
            core.on_program_end(self._state, program)
        chosen, number, key = core.admit(
            self._state._replace(up=may_take),  # the arrays of state change in place
            self._compiled,
            program,
            slot,
            views,
            may_refuse=False,
        )
        reason = core.REASONS[number] if pinned_to is None else "pinned"
        return Decision(int(chosen), min(int(key), MAX_PRIORITY), reason, load_ms)

    def pop(self, engine: int, now_ms: float) -> int | None:  # noqa: ARG002
        """The request to send to ``engine`` now; None if its window is full or nobody waits."""
        slot = core.pop(self._state, self._compiled, engine)
        return None if slot == core.NOBODY else self._requests.name(slot)

    def on_tokens(self, request_id: int, n: int) -> None:
        """``n`` more output tokens of a request came."""
        core.on_tokens(self._state, self._requests[request_id], n)

    def on_complete(self, request_id: int) -> None:
        """A running request is done; its program keeps its engine and remaining length."""
        core.complete(self._state, self._requests.give_back(request_id))

    def on_fail(self, request_id: int) -> None:
        """A request, queued or running, will not complete; its program's load is cleared."""
        core.fail(self._state, self._requests.give_back(request_id))

    def on_program_end(self, program_id: str) -> None:
        """A program has ended, after its requests completed or failed; unknown ones are ignored."""
        if self._programs.get(program_id) is not None:
            core.on_program_end(self._state, self._programs.give_back(program_id))

    def on_engine_down(self, engine: int) -> list[int]:
        """Stop using an engine; its programs lose it.

        Its running requests stay outstanding until the caller reports them failed.

        Returns:
            Ids of the requests that waited for it, in order of arrival, to be admitted again (with
            q where ``needs_confidence``): they are live no more.
        """
        state = self._state
        core.on_engine_down(state, engine)
        waiting = state.queue[engine, : state.queue_length[engine]]
        waiting = waiting[np.argsort(state.request_arrival[waiting])].copy()
        request_ids = [self._requests.name(slot) for slot in waiting.tolist()]
        for request_id in request_ids:
            core.complete(state, self._requests.give_back(request_id))
        return request_ids

    def on_engine_up(self, engine: int) -> None:
        """Use an engine again."""
        self._state.up[engine] = True

    def _take_slots(self, request: Request) -> tuple[int, int]:
        if self._programs.is_full:
            self._state = with_program_slots(self._state, self._programs.grow())
        if self._requests.is_full:
            self._state = with_request_slots(self._state, self._requests.grow())
        program = self._programs.get(request.program_id)
        if program is None:
            program = self._programs.take(request.program_id)
        return program, self._requests.take(request.request_id)


class _Slots(Generic[_Name]):
    """Which name has which slot."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._slots: dict[_Name, int] = {}
        self._names: dict[int, _Name] = {}
        self._free = list(range(n - 1, -1, -1))

    @property
    def is_full(self) -> bool:
        return not self._free

    def grow(self) -> int:
        """Twice as many slots; how many those are."""
        self._free = [*range(2 * self._n - 1, self._n - 1, -1), *self._free]
        self._n *= 2
        return self._n

    def get(self, name: _Name) -> int | None:
        return self._slots.get(name)

    def __getitem__(self, name: _Name) -> int:
        return self._slots[name]

    def name(self, slot: int) -> _Name:
        return self._names[slot]

    def take(self, name: _Name) -> int:
        slot = self._free.pop()
        self._slots[name] = slot
        self._names[slot] = name
        return slot

    def give_back(self, name: _Name) -> int:
        slot = self._slots.pop(name)
        del self._names[slot]
        self._free.append(slot)
        return slot

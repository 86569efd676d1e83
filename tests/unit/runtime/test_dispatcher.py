"""Slots are granted in the scheduler's order and given back however a request ends."""

import asyncio
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera_train.errors import EngineError
from chimera_train.runtime.dispatcher import Dispatcher
from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.policy import Chimera
from chimera_train.scheduling.scheduler import Scheduler

N = 2


def dispatcher(window: int = 1) -> tuple[Dispatcher, Scheduler]:
    engines = [EngineProfile(name, "m", 10.0, 4) for name in ("one", "two")]
    scheduler = Scheduler(engines, Chimera(window=window))
    return Dispatcher(scheduler, ["one", "two"], lambda: 0.0), scheduler


def request(request_id: int, tokens: int = 10, engine: int = 0) -> Request:
    q = np.zeros(N)
    q[engine] = 1.0
    return Request(request_id, f"p{request_id}", np.full(N, float(tokens)), q)


def shared(request_id: int) -> Request:
    """One of a few programs' requests, every third of which is pinned to an engine."""
    asked = request(request_id, engine=request_id % N)
    pinned_to = [request_id // 3 % N] if request_id % 3 == 0 else None
    return dataclasses.replace(asked, program_id=f"p{request_id % 4}", pinned_to=pinned_to)


def assert_nothing_is_left(dispatcher: Dispatcher, scheduler: Scheduler, ids) -> None:
    for request_id in ids:
        scheduler.on_program_end(f"p{request_id}")
    assert scheduler.load_ms().tolist() == [0.0] * N
    assert [scheduler.outstanding(e) for e in range(N)] == [0] * N
    assert [scheduler.queued(e) for e in range(N)] == [0] * N
    assert not dispatcher._grants


async def test_warming_up_leaves_nothing() -> None:
    d, scheduler = dispatcher()
    d.warm_up()
    assert_nothing_is_left(d, scheduler, [])


async def test_a_pinned_request_waits_for_no_other_engine() -> None:
    d, scheduler = dispatcher()
    d.engine_down(0)
    with pytest.raises(EngineError, match="No engine that may take"):
        async with d.slot(dataclasses.replace(request(0), pinned_to=[0])):
            pass
    async with d.slot(dataclasses.replace(request(0), pinned_to=[1])) as slot:
        assert (slot.decision.engine, slot.decision.reason) == (1, "pinned")
        slot.completed = True
    assert_nothing_is_left(d, scheduler, [0])


async def test_no_engine_is_up() -> None:
    d, scheduler = dispatcher()
    d.engine_down(0)
    d.engine_down(1)
    d.engine_down(1)
    with pytest.raises(EngineError, match="No engine"):
        async with d.slot(request(0)):
            pass
    d.engine_up(1)
    d.engine_up(1)
    async with d.slot(request(0)) as slot:
        assert slot.decision.engine == 1
        slot.completed = True
    assert_nothing_is_left(d, scheduler, [0])


@settings(max_examples=60)
@given(
    actions=st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "fail", "cancel", "down", "up"]), st.integers(0)
        ),
        max_size=40,
    ),
    window=st.integers(1, 3),
)
def test_nothing_leaks_whatever_happens(actions: list[tuple[str, int]], window: int) -> None:
    """Requests start, end, fail and are cancelled in any order, while engines come and go."""
    asyncio.run(_random_run(actions, window))


async def _random_run(actions: list[tuple[str, int]], window: int) -> None:
    d, scheduler = dispatcher(window)
    endings: dict[int, asyncio.Event] = {}
    failing: set[int] = set()
    tasks: dict[int, asyncio.Task[None]] = {}

    async def one(request_id: int) -> None:
        asked = shared(request_id)
        async with d.slot(asked) as slot:
            assert asked.pinned_to in (None, [slot.decision.engine])
            d.on_tokens(slot, 3)
            await endings[request_id].wait()
            slot.completed = request_id not in failing

    for count, (action, pick) in enumerate(actions):
        running = [i for i, task in tasks.items() if not task.done()]
        if action == "start":
            endings[count] = asyncio.Event()
            tasks[count] = asyncio.create_task(one(count))
        elif action == "down":
            d.engine_down(pick % N)
        elif action == "up":
            d.engine_up(pick % N)
        elif running:
            chosen = running[pick % len(running)]
            if action == "cancel":
                tasks[chosen].cancel()
            else:
                failing |= {chosen} if action == "fail" else set()
                endings[chosen].set()
        # Sometimes several things happen before anybody gets to run.
        if pick % 3:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        for engine in range(N):
            assert scheduler.outstanding(engine) <= window
    for ending in endings.values():
        ending.set()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for result in results:
        assert result is None or isinstance(result, (EngineError, asyncio.CancelledError)), result
    assert_nothing_is_left(d, scheduler, range(4))

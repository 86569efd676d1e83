"""How many requests an endpoint gets: fewer after refusals, more again after replies."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from chimera_train.collect import gate as module
from chimera_train.collect.gate import Gate, retry_after_s
from chimera_train.collect.request import open_endpoint
from chimera_train.collect.runner import ProgramResult, Sampling, run_program
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Workflow

DIRECT = Workflow.model_validate(
    {
        "name": "one",
        "stages": [{"id": "a", "role": "r", "user": "{question}", "max_tokens": 5}],
        "answer": ["a"],
    }
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_refusal_halves_the_limit_and_replies_raise_it_slowly() -> None:
    clock = Clock()
    gate = Gate(8, clock)
    gate.refused(clock.now, None)
    assert gate.limit == 4
    for _ in range(4):
        gate.accepted()
    assert 4.8 < gate.limit < 5.1
    for _ in range(100):
        gate.accepted()
    assert gate.limit == 8


def test_refusals_of_one_congestion_count_once() -> None:
    clock = Clock()
    gate = Gate(16, clock)
    clock.now = 101.0
    for _ in range(5):
        gate.refused(100.5, None)  # all were sent before the limit was cut
    assert (gate.limit, gate.refusals) == (8, 5)
    for later in range(10):
        gate.refused(102.0 + later, None)
        clock.now = 102.0 + later
    assert gate.limit == 1


def test_pauses_grow_unless_the_endpoint_says_how_long() -> None:
    clock = Clock()
    gate = Gate(4, clock)
    pauses = []
    for _ in range(8):
        pauses.append(gate.refused(clock.now, None))
        clock.now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert gate.refused(clock.now, 3.5) == 3.5
    gate.accepted()
    clock.now += 3.5
    assert gate.refused(clock.now, None) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), ("7", 7.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None)],
)
def test_retry_after(value: str | None, expected: float | None) -> None:
    assert retry_after_s(value) == expected


def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < (retry_after_s(date) or 0) <= 30


async def test_at_most_the_limit_passes_and_everyone_does_in_the_end() -> None:
    gate = Gate(3)
    active = most = done = 0

    async def one() -> None:
        nonlocal active, most, done
        async with gate.passage():
            active += 1
            most = max(most, active)
            await asyncio.sleep(0.001)
            gate.accepted()
            active -= 1
            done += 1

    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(40))), timeout=10)
    assert (most, done) == (3, 40)


async def ask_many(engine: Any, gate: Gate, n: int) -> list[ProgramResult]:
    async with open_endpoint(engine.base_url, "fake", gate) as endpoint:
        return await asyncio.gather(
            *(
                run_program(
                    endpoint,
                    DIRECT,
                    Question(f"q{index}", "t", f"What is {index}?", ""),
                    Sampling(0, 0.0),
                    program_id=f"p{index}",
                    sample=0,
                )
                for index in range(n)
            )
        )


@pytest.mark.parametrize("status", [429, 503])
async def test_an_endpoint_that_takes_three_at_a_time_gets_all_served(
    engine: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.02)
    engine.delay_s = 0.02
    engine.mishap = lambda _: status if engine.active >= 3 else None
    gate = Gate(16)
    results = await ask_many(engine, gate, 30)
    assert [result.error for result in results] == [None] * 30
    assert gate.refusals > 0
    attempts = [result.stages[0].attempt for result in results]
    assert sum(attempts) == 30 + gate.refusals


async def test_an_endpoint_that_refuses_for_too_long_is_an_error(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.mishap = lambda _: 429
    engine.retry_after = "10000"
    (result,) = await ask_many(engine, Gate(4), 1)
    assert result.error == "HTTP 429: no can do"
    assert len(engine.bodies) == 1


async def test_a_program_starts_when_its_first_request_is_sent(engine: Any) -> None:
    engine.delay_s = 0.1
    gate = Gate(1)
    results = await ask_many(engine, gate, 3)
    assert [result.stages[0].start_ms for result in results] == [0.0] * 3
    assert all(result.latency_ms < 190 for result in results)
    begun = sorted(result.started_at for result in results)
    assert (begun[2] - begun[0]).total_seconds() > 0.15

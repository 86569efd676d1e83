"""Engines that fail are left alone, ever longer, until they are back."""

import asyncio

import pytest
from starlette.responses import JSONResponse, Response

from chimera_train.runtime.breaker import Breaker, State


class Clock:
    now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(3, 100.0, 500.0, clock)


def probe(breaker: Breaker, clock: Clock, *, was_answered: bool) -> None:
    clock.now_ms += breaker.wait_ms
    breaker.begin_probe()
    assert (breaker.state, breaker.wait_ms) == (State.HALF_OPEN, 0)
    breaker.end_probe(was_answered=was_answered)


def test_failures_in_a_row_open_it(breaker) -> None:
    for event in ("failed", "failed", "answered", "failed", "failed"):
        getattr(breaker, event)()
        assert (breaker.state, breaker.wait_ms) == (State.CLOSED, 0)
    breaker.failed()
    assert (breaker.state, breaker.wait_ms) == (State.OPEN, 100)
    breaker.answered()
    assert breaker.state is State.OPEN, "that had been asked before"


def test_a_loss_opens_it_once(breaker, clock) -> None:
    breaker.lost()
    clock.now_ms = 60
    breaker.lost()
    breaker.failed()
    assert (breaker.state, breaker.wait_ms) == (State.OPEN, 40)


def test_the_wait_doubles_up_to_its_bound(breaker, clock) -> None:
    breaker.lost()
    waits = []
    for _ in range(5):
        waits.append(breaker.wait_ms)
        probe(breaker, clock, was_answered=False)
    assert waits == [100, 200, 400, 500, 500]


def test_one_that_answers_probes_only_is_tried_ever_more_rarely(breaker, clock) -> None:
    breaker.lost()
    probe(breaker, clock, was_answered=True)
    assert breaker.state is State.CLOSED
    breaker.failed()
    assert (breaker.state, breaker.wait_ms) == (State.OPEN, 200)
    probe(breaker, clock, was_answered=True)
    breaker.answered()
    for _ in range(3):
        assert breaker.state is State.CLOSED
        breaker.failed()
    assert (breaker.state, breaker.wait_ms) == (State.OPEN, 100), "a client was answered meanwhile"


async def until(condition) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it did not happen")


BROKEN = {"error": {"message": "the engine is dead", "code": 500}}
EVENT = b'data: {"error": {"message": "broke", "code": 500}}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    "answer",
    [
        lambda: JSONResponse(BROKEN, 500),
        lambda: Response(EVENT, media_type="text/event-stream"),
        lambda: Response(b"", media_type="text/event-stream"),
    ],
)
async def test_an_engine_that_keeps_failing_is_left_alone_until_it_generates(rig, answer) -> None:
    async with rig(engine_failures=2) as r:
        r.engines[0].answer = answer
        for _ in range(2):
            assert (await r.chat()).status_code >= 500
        assert not r.gateway.dispatcher.is_up(0)
        assert 'chimera_breaker_state{engine="two"} 0.0' in (await r.client.get("/metrics")).text
        assert (await r.chat()).json()["choices"][0]["message"]["content"] == "Bye"
        r.engines[0].answer = lambda: JSONResponse(BROKEN, 503)
        n_asked = len(r.engines[0].bodies)
        await until(lambda: len(r.engines[0].bodies) > n_asked)
        assert r.engines[0].bodies[-1]["max_tokens"] == 1, "listing models is no proof"
        assert not r.gateway.dispatcher.is_up(0)
        r.engines[0].answer = None
        await until(lambda: r.gateway.dispatcher.is_up(0))
        assert (await r.chat()).json()["choices"][0]["message"]["content"] == "Hello wörld ✓"
        await r.idle()


async def test_errors_of_clients_do_not_count(rig) -> None:
    async with rig(engine_failures=1) as r:
        r.engines[0].answer = lambda: JSONResponse({"error": {"code": 400}}, 400)
        for _ in range(3):
            assert (await r.chat()).status_code == 400
        assert r.gateway.dispatcher.is_up(0)


async def test_clients_are_told_when_to_come_back(rig) -> None:
    async with rig(dead=[0, 1], probe_interval_s=30) as r:
        answer = await r.chat()
        assert answer.status_code == 503
        assert 28 <= int(answer.headers["retry-after"]) <= 30
        assert 'chimera_breaker_state{engine="one"} 2.0' in (await r.client.get("/metrics")).text

"""The virtual model and the pool's own, and whether the gateway takes requests."""

import asyncio
import json

from chimera_train.scheduling.policy import RoundRobin

PROGRAM = {"X-Program-Id": "p1"}


def decided(answer) -> tuple[str, str]:
    decision = json.loads(answer.headers["x-chimera-decision"])
    return decision["engine"], decision["reason"]


async def test_a_real_model_pins_the_request_to_its_engines(rig) -> None:
    async with rig() as r:
        assert decided(await r.chat(model="large")) == ("two", "pinned")
        assert decided(await r.chat(model="two")) == ("two", "pinned"), "an engine's name does too"
        assert decided(await r.chat(model="demo")) == ("one", "fastest")
        assert r.router.texts == ["hi"], "where nothing is chosen, the router is not asked"
        assert [row["q"] is None for row in r.decisions] == [True, True, False]
        assert [model for model, _ in r.length.asked] == ["large", "large", "small", "large"]
        answer = await r.chat(model="huge")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        await r.idle()


async def test_a_program_keeps_its_engine_if_it_serves_the_model(rig) -> None:
    async with rig(models=("small", "small"), policy=RoundRobin()) as r:
        engines = {decided(await r.chat(model="small", headers=PROGRAM))[0] for _ in range(3)}
        assert len(engines) == 1
        others = [decided(await r.chat(model="small"))[0] for _ in range(4)]
        assert sorted(others) == ["one", "one", "two", "two"], "the policy chooses among replicas"
        await r.idle()


async def test_a_program_moves_to_an_engine_that_serves_the_model(rig) -> None:
    async with rig() as r:
        assert decided(await r.chat("40", headers=PROGRAM)) == ("one", "fastest")
        moved = await r.chat("40", model="large", headers=PROGRAM)
        assert decided(moved) == ("two", "pinned")
        assert r.scheduler.load_ms()[0] == 0, "its work is where it is now"
        assert r.scheduler.load_ms()[1] > 0
        assert decided(await r.chat("40", headers=PROGRAM)) == ("two", "known_program")
        await r.idle()


async def test_a_pinned_request_does_not_go_elsewhere(rig) -> None:
    async with rig(dead=[0]) as r:
        answer = await r.chat(model="small")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert r.engines[1].bodies == []
        assert (await r.chat()).status_code == 200
        await r.idle()


async def test_readiness(rig) -> None:
    async with rig(dead=[0]) as r:
        ready = await r.client.get("/ready")
        assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
        r.gateway.dispatcher.engine_down(1)
        ready = await r.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "no engine is up"})


async def test_while_it_drains_new_requests_are_refused_and_running_ones_answered(rig) -> None:
    async with rig() as r:
        r.engines[0].gate.clear()
        running = asyncio.create_task(r.chat())
        while not r.engines[0].active:
            await asyncio.sleep(0.005)
        r.gateway.drain()
        ready = await r.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        answer = await r.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
        assert answer.headers["retry-after"] == "1"
        assert (await r.client.get("/health")).status_code == 200, "it lives"
        r.engines[0].gate.set()
        assert (await running).status_code == 200
        await r.idle()

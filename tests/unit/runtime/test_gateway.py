"""The gateway end to end over HTTP: what clients get, what engines get, what is left behind."""

import asyncio
import json

import openai
import pytest
from starlette.responses import JSONResponse, Response

from chimera_train.history import History
from chimera_train.scheduling.policy import Chimera, RoundRobin

PROGRAM = {"X-Program-Id": "p1", "X-Workflow": "math", "X-Stage": "solve"}


async def until(condition) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    pytest.fail("it did not happen")


async def test_a_stream_is_relayed_byte_for_byte(rig) -> None:
    async with rig() as r:
        answer = await r.chat(stream=True, stream_options={"include_usage": True})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert json.loads(answer.headers["x-chimera-decision"]) == {
            "engine": "one",
            "reason": "fastest",
        }
        assert answer.content == b"".join(r.engines[0].sent)
        await r.idle()


async def test_usage_that_was_not_asked_for_is_hidden_and_nothing_else(rig) -> None:
    async with rig() as r:
        answer = await r.chat(stream=True)
        sent = r.engines[0].sent
        shown = [event for event in sent if b"usage" not in event]
        assert len(shown) == len(sent) - 1
        assert answer.content == b"".join(shown)
        assert r.decisions[0]["realised_tokens"] == 3


async def test_a_client_that_does_not_stream_gets_a_whole_response(rig) -> None:
    async with rig() as r:
        answer = (await r.chat(n=2)).json()
        assert r.engines[0].bodies[0]["stream"] is True
        assert answer["object"] == "chat.completion"
        assert [c["message"]["content"] for c in answer["choices"]] == ["Hello wörld ✓"] * 2
        assert answer["usage"]["completion_tokens"] == 6
        body = {"model": "demo", "prompt": "once upon"}
        answer = (await r.client.post("/v1/completions", json=body)).json()
        assert answer["object"] == "text_completion"
        assert answer["choices"][0]["text"] == "Hello wörld ✓"
        await r.idle()


async def test_the_openai_client_works_unchanged(rig) -> None:
    async with rig() as r, openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="key") as client:
        messages = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="demo", messages=messages)
        assert whole.choices[0].message.content == "Hello wörld ✓"
        assert whole.usage.completion_tokens == 3
        stream = await client.chat.completions.create(
            model="demo",
            messages=messages,
            stream=True,
            metadata={"program_id": "p", "workflow": "math", "stage": "solve"},
            extra_body={"top_k": 3},
        )
        texts = [chunk.choices[0].delta.content async for chunk in stream]
        assert "".join(filter(None, texts)) == "Hello wörld ✓"
        completion = await client.completions.create(model="demo", prompt="hi")
        assert completion.choices[0].text == "Hello wörld ✓"
        assert [m.id async for m in client.models.list()] == ["demo", "small", "large"]
        assert "metadata" not in r.engines[0].bodies[1]
        assert r.engines[0].bodies[1]["top_k"] == 3
        assert "authorization" not in r.engines[0].headers[0], "the client's key is the gateway's"
        with pytest.raises(openai.NotFoundError, match="'demo' chooses among small, large"):
            await client.chat.completions.create(model="other", messages=messages)


async def test_what_the_engine_is_sent(rig) -> None:
    async with rig() as r:
        await r.chat("25", priority=-5, metadata={"stage": "solve", "tag": "x"}, unknown=[1])
        assert r.engines[0].bodies[0] == {
            "model": "one-served",
            "messages": [{"role": "user", "content": "25"}],
            "metadata": {"tag": "x"},
            "unknown": [1],
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": 25,
        }
        body = b'{"messages": [{"role": "user", "content": "1"}]}'
        form = {"content-type": "application/x-www-form-urlencoded"}  # as curl -d says
        await r.client.post("/v1/chat/completions", content=body, headers=form)
        assert r.engines[0].headers[1]["content-type"] == "application/json"
    async with rig(priority=False) as r:
        await r.chat("25", priority=-5)
        assert "priority" not in r.engines[0].bodies[0]


async def test_a_known_program_keeps_its_engine_and_its_history(rig) -> None:
    async with rig() as r:
        await r.chat("first question", headers=PROGRAM)
        r.router.confidence = [0.1, 0.9]
        await r.chat("other")
        system = {"role": "system", "content": "be brief"}
        user = {"role": "user", "content": "a b c"}
        answer = await r.chat(messages=[system, user], headers={**PROGRAM, "X-Stage": "verify"})
        assert json.loads(answer.headers["x-chimera-decision"]) == {
            "engine": "one",
            "reason": "known_program",
        }
        assert [len(engine.bodies) for engine in r.engines] == [2, 1]
        assert r.router.texts == ["first question", "other"], "only first requests are routed"
        model, stage = r.length.asked[-1]
        assert model == "small", "the others cannot get it"
        assert (stage.workflow, stage.stage, stage.text) == ("math", "verify", "a b c")
        assert (stage.system_tokens, stage.user_tokens, stage.prompt_tokens) == (2, 3, 9)
        assert stage.history == History().after("solve", 5, 3)

        shown = (await r.client.get("/v1/programs/p1")).json()
        assert shown == {
            "program_id": "p1",
            "workflow": "math",
            "engine": "one",
            "model": "small",
            "n_requests": 2,
            "in_flight": 0,
            "generated_tokens": 6,
        }
        assert len(r.gateway.programs) == 1, "requests without identity end by themselves"
        assert (await r.client.post("/v1/programs/p1/end")).status_code == 200
        assert r.scheduler.engine_of("p1") is None
        assert (await r.client.get("/v1/programs/p1")).status_code == 404
        assert (await r.client.post("/v1/programs/p1/end")).status_code == 404
        await r.chat(headers=PROGRAM)
        assert (await r.client.delete("/v1/programs/p1")).json()["program_id"] == "p1"
        assert r.scheduler.engine_of("p1") is None
        assert (await r.client.delete("/v1/programs/p1")).status_code == 404
        await r.idle()


async def test_loads_fall_as_tokens_come_and_end_at_zero(rig) -> None:
    async with rig() as r:
        r.engines[0].gate.clear()
        request = asyncio.create_task(r.chat("40", headers=PROGRAM))
        await until(lambda: r.engines[0].active)
        assert r.scheduler.load_ms().tolist() == [40 * 10.0 / 4, 0.0]
        r.engines[0].gate.set()
        await request
        assert r.scheduler.load_ms().tolist() == [37 * 10.0 / 4, 0.0]
        await r.idle()


async def test_the_shortest_job_that_waits_goes_first(rig) -> None:
    async with rig(window=1) as r:
        r.engines[0].gate.clear()
        requests = [asyncio.create_task(r.chat("50"))]
        await until(lambda: r.engines[0].active)
        for waiting, text in enumerate(("30", "10", "20"), 1):
            requests.append(asyncio.create_task(r.chat(text)))
            await until(lambda n=waiting: r.scheduler.queued(0) == n)
        r.engines[0].gate.set()
        await asyncio.gather(*requests)
        order = [body["messages"][0]["content"] for body in r.engines[0].bodies]
        assert order == ["50", "10", "20", "30"]
        await r.idle()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_frees_the_engine(rig, stream: bool) -> None:
    async with rig() as r:
        r.engines[0].pace_s = 0.02
        r.engines[0].tokens = ["x"] * 1000
        body = {"messages": [{"role": "user", "content": "40"}], "stream": stream}
        if stream:
            async with r.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                await anext(answer.aiter_raw())
        else:
            request = asyncio.create_task(r.chat("40"))
            await until(lambda: r.engines[0].active)
            request.cancel()
        await until(lambda: r.engines[0].cancelled == 1)
        assert r.engines[0].active == 0
        await r.idle()
        assert r.decisions[0]["error"].startswith("cancelled")


async def test_a_client_that_goes_away_while_waiting_leaves_the_queue(rig) -> None:
    async with rig(window=1) as r:
        r.engines[0].gate.clear()
        first = asyncio.create_task(r.chat())
        await until(lambda: r.engines[0].active)
        second = asyncio.create_task(r.chat("40"))
        await until(lambda: r.scheduler.queued(0) == 1)
        second.cancel()
        await until(lambda: r.scheduler.queued(0) == 0)
        r.engines[0].gate.set()
        assert (await first).status_code == 200
        assert len(r.engines[0].bodies) == 1
        await r.idle()


async def test_a_dead_engine_is_left_out_and_comes_back(rig) -> None:
    async with rig(dead=[0]) as r:
        health = await r.client.get("/health")
        assert (health.status_code, health.json()["engines"]) == (200, {"one": "down", "two": "up"})
        # As if it had died this moment: the gateway does not know yet.
        r.gateway.dispatcher.engine_up(0)
        answer = await r.chat()
        assert answer.json()["choices"][0]["message"]["content"] == "Bye"
        assert r.decisions[0]["fallbacks"] == 1
        assert r.decisions[0]["engine"] == "two"
        assert not r.gateway.dispatcher.is_up(0)
        await r.idle()


async def test_an_engine_that_dies_sends_its_waiting_and_unsent_requests_elsewhere(rig) -> None:
    async with rig(window=1, probe_interval_s=60) as r:
        r.engines[0].gate.clear()
        requests = [asyncio.create_task(r.chat(headers=PROGRAM))]
        await until(lambda: r.engines[0].active)
        requests.append(asyncio.create_task(r.chat(stream=True)))
        await until(lambda: r.scheduler.queued(0) == 1)
        r.engines[0].cut_after = 2
        r.engines[0].gate.set()
        whole, streamed = await asyncio.gather(*requests)
        assert whole.json()["choices"][0]["message"]["content"] == "Bye"
        assert b"Bye" in streamed.content
        assert b"Hello" not in streamed.content
        assert r.scheduler.engine_of("p1") == 1
        assert (await r.client.get("/health")).json()["engines"]["one"] == "down"
        await r.idle()


async def test_a_stream_that_has_begun_ends_in_an_error_and_the_engine_is_probed(rig) -> None:
    async with rig() as r:
        r.engines[0].cut_after = 2
        answer = await r.chat(stream=True)
        assert answer.content.startswith(b"".join(r.engines[0].sent))
        error, done = answer.content.strip().split(b"\n\n")[-2:]
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "engine_unavailable"
        assert done == b"data: [DONE]"
        assert len(r.engines[1].bodies) == 0, "what the client has seen is not generated again"
        r.engines[0].cut_after = None
        await until(lambda: r.gateway.dispatcher.is_up(0))
        assert (await r.chat()).json()["choices"][0]["message"]["content"] == "Hello wörld ✓"
        await r.idle()


async def test_only_a_complete_response_is_history(rig) -> None:
    async with rig() as r:
        r.engines[0].cut_after = 2
        await r.chat(stream=True, headers=PROGRAM)
        r.engines[0].cut_after = None
        await until(lambda: r.gateway.dispatcher.is_up(0))
        await r.chat(headers=PROGRAM)
        await r.chat(headers=PROGRAM)
        histories = [stage.history for _, stage in r.length.asked]
        assert histories[-2:] == [History(), History().after("solve", 5, 3)]
        await r.idle()


async def test_no_engine_at_all(rig) -> None:
    async with rig(dead=[0, 1]) as r:
        assert (await r.client.get("/health")).status_code == 503
        answer = await r.chat()
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_unavailable"
        assert "retry-after" in answer.headers
        r.gateway.dispatcher.engine_up(0)
        r.gateway.dispatcher.engine_up(1)
        assert (await r.chat()).status_code == 503
        await r.idle()


async def test_redispatches_are_bounded(rig) -> None:
    async with rig(redispatches=0, dead=[0]) as r:
        r.gateway.dispatcher.engine_up(0)
        assert (await r.chat()).status_code == 502
        assert (await r.chat()).status_code == 200
        await r.idle()


async def test_an_error_of_the_engine_is_the_clients(rig) -> None:
    async with rig() as r:
        error = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
        r.engines[0].answer = lambda: JSONResponse(error, 400)
        for stream in (True, False):
            answer = await r.chat("40", stream=stream, headers=PROGRAM)
            assert (answer.status_code, answer.json()) == (400, error)
            assert r.scheduler.load_ms().tolist() == [0.0, 0.0], "nothing more is to come"
        assert r.scheduler.engine_of("p1") == 0
        assert r.gateway.dispatcher.is_up(0)
        assert [row["error"] for row in r.decisions] == ["the engine answered with status 400"] * 2
        await r.idle()


async def test_an_error_inside_a_stream(rig) -> None:
    async with rig() as r:
        event = b'data: {"error": {"message": "broke", "code": 400}}\n\ndata: [DONE]\n\n'
        r.engines[0].answer = lambda: Response(event, media_type="text/event-stream")
        assert (await r.chat(stream=True)).content == event
        answer = await r.chat()
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "broke")
        r.engines[0].answer = lambda: Response(b"", media_type="text/event-stream")
        answer = await r.chat()
        assert answer.status_code == 502
        assert "before the response was complete" in answer.json()["error"]["message"]
        await r.idle()


async def test_an_engine_that_does_not_stream_after_all(rig) -> None:
    async with rig() as r:
        whole = {"object": "chat.completion", "usage": {"completion_tokens": 9}}
        r.engines[0].answer = lambda: JSONResponse(whole)
        assert (await r.chat()).json() == whole
        assert (r.decisions[0]["realised_tokens"], r.decisions[0]["error"]) == (9, None)


async def test_a_full_queue_is_answered_429(rig) -> None:
    async with rig(window=1, max_waiting=1) as r:
        r.engines[0].gate.clear()
        waiting = [asyncio.create_task(r.chat("4000")) for _ in range(1)]
        await until(lambda: r.engines[0].active)
        waiting.append(asyncio.create_task(r.chat("4000")))
        await until(lambda: r.scheduler.queued(0) == 1)
        answer = await r.chat()
        assert answer.status_code == 429
        assert answer.json()["error"]["code"] == "queue_full"
        assert answer.headers["retry-after"] == "1", "engine two has nothing to do"
        r.engines[0].gate.set()
        assert [a.status_code for a in await asyncio.gather(*waiting)] == [200, 200]
        await r.idle()


async def test_too_many_programs_at_once(rig) -> None:
    async with rig(max_programs=1) as r:
        r.engines[0].gate.clear()
        request = asyncio.create_task(r.chat(headers=PROGRAM))
        await until(lambda: r.engines[0].active)
        answer = await r.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_programs")
        r.engines[0].gate.set()
        await request
        assert (await r.chat()).status_code == 200, "an idle program makes room"
        await r.idle()


async def test_a_forgotten_program_ends(rig, monkeypatch) -> None:
    monkeypatch.setattr("chimera_train.runtime.gateway._SWEEP_S", 0.01)
    async with rig(program_ttl_s=0.05) as r:
        await r.chat(headers=PROGRAM)
        assert r.scheduler.engine_of("p1") == 0
        await until(lambda: r.scheduler.engine_of("p1") is None)
        assert len(r.gateway.programs) == 0
        await r.idle()


REFUSED = {
    b"": 400,
    b"{": 400,
    b"[]": 400,
    b"\xff": 400,
    b'{"messages": NaN}': 400,
    b"[" * 100_000: 400,
    b'{"model": "demo"}': 400,
    b'{"messages": []}': 400,
    b'{"messages": ["a"]}': 400,
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}': 400,
    b'{"messages": [{}], "stream": "yes"}': 400,
    b'{"messages": [{}], "stream_options": {"include_usage": true}}': 400,
    b'{"messages": [{}], "metadata": {"program_id": 7}}': 400,
    b'{"messages": [{}], "model": "gpt"}': 404,
    b'{"messages": "' + b"x" * 200_000 + b'"}': 413,
}


async def test_requests_that_are_refused(rig) -> None:
    async with rig(body_limit_bytes=200_000) as r:
        for body, status in REFUSED.items():
            answer = await r.client.post("/v1/chat/completions", content=body)
            assert answer.status_code == status, body[:80]
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert r.engines[0].bodies == []
        assert r.decisions == []


async def test_endpoints_that_are_not_there(rig) -> None:
    async with rig() as r:
        for method, path, status in (
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/programs/p1", 405),
            ("GET", "/", 404),
        ):
            answer = await r.client.request(method, path)
            assert answer.status_code == status
            assert f"does not answer {method} {path}" in answer.json()["error"]["message"]
            assert ("allow" in answer.headers) == (status == 405)


async def test_a_prediction_that_fails_fails_alone(rig, caplog) -> None:
    async with rig() as r:
        answers = await asyncio.gather(*(r.chat(text) for text in ("1", "poison", "2", "3")))
        assert [answer.status_code for answer in answers] == [200, 500, 200, 200]
        assert "poison" not in answers[1].text
        assert "RuntimeError: poison" in caplog.text
        await r.idle()


async def test_policies_without_predictions_ask_for_none(rig) -> None:
    async with rig(policy=RoundRobin()) as r:
        for _ in range(4):
            await r.chat()
        assert [len(engine.bodies) for engine in r.engines] == [2, 2]
        assert (r.router.texts, r.length.asked) == ([], [])
        assert (r.decisions[0]["q"], r.decisions[0]["predicted_tokens"]) == (None, None)


async def test_the_decision_row(rig) -> None:
    async with rig(policy=Chimera(tau=float("inf"), delta_s=0.0, load="inflight")) as r:
        await r.chat("12", headers=PROGRAM)
        (row,) = r.decisions
        for name in ("ttft_ms", "e2e_ms", "queue_ms", "overhead_ms"):
            assert row.pop(name) >= 0, name
        row.pop("time")
        assert row == {
            "program_id": "p1",
            "request_id": 0,
            "workflow": "math",
            "stage": "solve",
            "engine": "one",
            "model": "small",
            "reason": "fastest",
            "priority": 12,
            "q": [("one", 0.9), ("two", 0.1)],
            "load_ms": [("one", 0.0), ("two", 0.0)],
            "predicted_tokens": 12.0,
            "predicted_low_tokens": 6.0,
            "predicted_high_tokens": 24.0,
            "prompt_tokens": 5,
            "realised_tokens": 3,
            "fallbacks": 0,
            "error": None,
        }


async def test_metrics(rig) -> None:
    async with rig() as r:
        await r.chat(headers=PROGRAM)
        await r.client.post("/v1/chat/completions", content=b"{")
        text = (await r.client.get("/metrics")).text
        assert 'chimera_requests_total{status="200"} 1.0' in text
        assert 'chimera_requests_total{status="400"} 1.0' in text
        assert 'chimera_ttft_seconds_count{engine="one"} 1.0' in text
        assert "chimera_overhead_seconds_count 1.0" in text
        assert 'chimera_engine_up{engine="two"} 1.0' in text
        assert 'chimera_load_ms{engine="one"} 17.5' in text
        assert "chimera_programs 1.0" in text

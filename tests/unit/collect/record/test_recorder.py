"""What clients get through the proxy, and what is recorded of it."""

import asyncio
import json

import openai
from starlette.responses import JSONResponse, Response

from chimera_train.errors import ChimeraError

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]


def headers(program: str, stage: str = "", **more: str) -> dict[str, str]:
    named = {"X-Program-Id": program, "X-Stage": stage, "X-Workflow": "w"}
    return named | {f"X-{name.replace('_', '-')}": value for name, value in more.items()}


async def test_a_stream_is_relayed_byte_for_byte_without_the_usage_it_did_not_ask_for(rig) -> None:
    async with rig() as r:
        answer = await r.chat(stream=True)
        sent = r.engines["one"].sent
        assert r.engines["one"].bodies[0]["stream_options"] == {"include_usage": True}
        assert answer.content == b"".join(event for event in sent if b'"usage"' not in event)
        assert answer.headers["content-type"].startswith("text/event-stream")
        sent.clear()
        r.engines["two"].sent.clear()
        answer = await r.chat(stream=True, stream_options={"include_usage": True}, model="one")
        assert answer.content == b"".join(sent)


async def test_the_openai_client_streaming_and_not(rig) -> None:
    async with rig() as r:
        named = {"program_id": "p", "stage": "plan", "workflow": "w"}
        whole = await r.openai.chat.completions.create(
            model="small", messages=ASK, metadata=named, max_tokens=9, temperature=0.5, seed=3
        )
        assert whole.choices[0].message.content == "Hello wörld ✓"
        stream = await r.openai.chat.completions.create(
            model="small", messages=ASK, stream=True, extra_headers=headers("p", "check")
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == "Hello wörld ✓"
        completed = await r.openai.completions.create(
            model="big", prompt="Once", extra_headers=headers("q")
        )
        assert completed.choices[0].text == "Bye"
        assert [model.id async for model in r.openai.models.list()] == [
            "small", "large", "one", "two", "big",
        ]  # fmt: skip
        result, programs, stages = r.tables()
    assert (result.programs, result.stages, result.failed) == (2, 3, 0)
    assert [(p["program_id"], p["model"], p["n_stages"]) for p in programs] == [
        ("p", "small", 2), ("q", "large", 1),
    ]  # fmt: skip
    assert programs[0]["total_output_tokens"] == 6
    plan, check, _ = stages
    assert (plan["stage"], check["stage"]) == ("plan", "check")
    assert (plan["max_tokens"], plan["temperature"], plan["seed"]) == (9, 0.5, 3)
    assert (plan["prompt_tokens"], plan["output_tokens"], plan["finish_reason"]) == (5, 3, "stop")
    assert (plan["system_text"], plan["user_text"]) == ("Be brief.", "How many?")
    assert (plan["system_tokens"], plan["user_tokens"]) == (2, 2)
    assert plan["output_text"] == check["output_text"] == "Hello wörld ✓"
    assert 0 <= plan["ttft_ms"] <= plan["e2e_ms"]
    assert list(plan["after"]) == []
    assert list(check["after"]) == [0]
    assert check["start_ms"] >= plan["e2e_ms"]


def test_the_synchronous_openai_client(rig) -> None:
    async def scenario() -> None:
        async with rig() as r:

            def ask() -> list[str]:
                with openai.OpenAI(base_url=f"{r.url}/v1", api_key="none") as client:
                    whole = client.chat.completions.create(model="large", messages=ASK)
                    stream = client.chat.completions.create(
                        model="large", messages=ASK, stream=True
                    )
                    pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
                    return [str(whole.choices[0].message.content), "".join(pieces)]

            assert await asyncio.to_thread(ask) == ["Bye", "Bye"]
            await r.stored(2)
            assert r.tables()[0].programs == 2

    asyncio.run(scenario())


async def test_several_choices_tools_and_unknown_fields_pass_through(rig) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "add"}}]
    usage = {"prompt_tokens": 7, "completion_tokens": 4}
    usage["completion_tokens_details"] = {"reasoning_tokens": 2}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    async with rig() as r:
        two = await r.chat(n=2, model="big", odd_field={"x": 1})
        assert [c["message"]["content"] for c in two.json()["choices"]] == ["Bye", "Bye"]
        assert r.engines["big"].bodies[0]["odd_field"] == {"x": 1}
        r.engines["big"].answer = lambda: JSONResponse({**body, "usage": usage})
        called = await r.chat(model="big", tools=tools)
        assert called.json()["choices"][0]["message"] == message
        assert r.engines["big"].bodies[1]["tools"] == tools
        _, programs, stages = r.tables()
    assert [p["error"] for p in programs] == [None, None]
    assert [s["output_text"] for s in stages] == ["Bye\nBye", 'add({"a": 1})']
    assert [s["output_tokens"] for s in stages] == [2, 4]
    assert stages[1]["reasoning_tokens"] == 2


async def test_a_program_stays_on_its_engine_and_others_go_to_the_least_busy(rig) -> None:
    async with rig() as r:
        r.engines["one"].gate.clear()
        first = asyncio.create_task(r.chat(headers=headers("a", "x")))
        while not r.engines["one"].active:
            await asyncio.sleep(0.005)
        await r.chat(headers=headers("b", "y"))
        assert len(r.engines["two"].bodies) == 1
        second = asyncio.create_task(r.chat(headers=headers("a", "z")))
        while r.engines["one"].active < 2:
            await asyncio.sleep(0.005)
        r.engines["one"].gate.set()
        await asyncio.gather(first, second)
        _, programs, stages = r.tables()
    assert {p["program_id"]: p["engine"] for p in programs} == {"a": "one", "b": "two"}
    # Neither of the two waited for the other: they were in flight together.
    assert [list(s["after"]) for s in stages if s["program_id"] == "a"] == [[], []]


async def test_an_engine_that_is_away_is_recorded_and_passed_over(rig) -> None:
    async with rig(dead="one") as r:
        answer = await r.chat(headers=headers("a"))
        assert answer.status_code == 502
        assert "could not be reached" in answer.json()["error"]["message"]
        assert (await r.chat(headers=headers("a"))).status_code == 200
        health = await r.client.get("/health")
        assert (health.status_code, health.json()["engines"]["one"]) == (200, "down")
        _, programs, stages = r.tables()
    assert programs[0]["error"] is None  # it asked again
    assert "could not be reached" in stages[0]["error"]
    assert stages[1]["error"] is None


async def test_what_an_engine_refuses_is_passed_on_and_recorded(rig) -> None:
    refusal = {"error": {"message": "too long", "code": 400}}
    async with rig() as r:
        r.engines["big"].answer = lambda: JSONResponse(refusal, 400)
        answer = await r.chat(model="large", headers=headers("p"))
        assert (answer.status_code, answer.json()) == (400, refusal)
        result, programs, _ = r.tables()
    assert result.failed == 1
    assert programs[0]["error"] == "HTTP 400: too long"


async def test_an_engine_that_breaks_off(rig) -> None:
    async with rig() as r:
        r.engines["big"].cut_after = 1
        answer = await r.chat(model="large", headers=headers("p"))
        assert answer.status_code == 502
        _, programs, stages = r.tables()
    assert "went away" in programs[0]["error"]
    assert stages[0]["output_text"] == "Bye"


async def test_a_client_that_goes_away_cancels_its_request(rig) -> None:
    async with rig() as r:
        r.engines["one"].gate.clear()
        asked = asyncio.create_task(r.chat(headers=headers("p")))
        while not r.engines["one"].active:
            await asyncio.sleep(0.005)
        asked.cancel()
        await r.stored(1)
        while r.engines["one"].active:
            await asyncio.sleep(0.005)
        assert r.engines["one"].cancelled == 1
        assert r.recorder.engines[0].outstanding == 0
        _, programs, _ = r.tables()
    assert programs[0]["error"].startswith("cancelled")


async def test_a_client_that_leaves_when_it_has_all_has_completed(rig) -> None:
    async with rig() as r:
        r.engines["one"].pace_s = 0.02
        body = {"model": "one", "stream": True, "messages": ASK}
        async with r.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    break
        await r.stored(1)
        _, programs, stages = r.tables()
    assert programs[0]["error"] is None
    assert stages[0]["output_text"] == "Hello wörld ✓"


async def test_outcomes_end_programs_and_name_their_questions(rig) -> None:
    async with rig() as r:
        await r.chat("How  many?", headers=headers("a"))
        await r.chat("How many?\n", headers=headers("b"))
        await r.chat("Other", headers=headers("c", Question_Id="q7", Task="math"))
        anonymous = (await r.chat("How many?")).headers["x-program-id"]
        assert (await r.outcome("a", score=0.25)).json()["ended"]
        assert (await r.outcome("a", score=1)).status_code == 200  # the latest counts
        assert (await r.outcome("b", correct=False)).status_code == 200
        assert (await r.outcome("c", correct=True, question_id="q8")).status_code == 200
        assert (await r.outcome(anonymous, score=0.5)).status_code == 200
        await r.chat("How many?", headers=headers("a"))  # the name is used again
        assert (await r.client.post("/v1/programs/a/end")).json()["ended"]
        result, programs, _ = r.tables()
    by_id = {p["program_id"]: p for p in programs}
    again = next(name for name in by_id if name.startswith("a#"))
    assert (result.programs, result.graded, result.questions) == (5, 4, 2)
    assert [by_id[n]["score"] for n in ("a", "b", "c", anonymous)] == [1, 0, 1, 0.5]
    assert by_id["a"]["correct"]
    assert not by_id["b"]["correct"]
    same = {by_id[n]["question_id"] for n in ("a", "b", anonymous, again)}
    assert len(same) == 1
    assert (by_id["c"]["question_id"], by_id["c"]["task"]) == ("q8", "math")
    assert by_id["b"]["task"] == "recorded"
    samples = [p["sample"] for p in programs if p["question_id"] in same and p["workflow"]]
    assert samples == [0, 1, 2]


async def test_a_restart_goes_on_with_what_is_on_the_disk(rig) -> None:
    async with rig() as r:
        await r.chat(headers=headers("a", "x"))
        await r.chat(headers=headers("b", "x"))
        alone = (await r.chat()).headers["x-program-id"]
        await r.outcome("b", score=1)
    async with rig() as r:
        assert (await r.outcome(alone, score=0)).status_code == 200
        await r.chat(headers=headers("a", "y"))
        assert (await r.outcome("a", score=0.5)).json()["n_requests"] == 2
        shown = (await r.client.get("/v1/programs/b")).json()
        assert shown["ended"]
        assert shown["n_requests"] == 1
        _, programs, stages = r.tables()
    assert {p["program_id"]: p["score"] for p in programs} == {"a": 0.5, "b": 1, alone: 0}
    assert [s["stage"] for s in stages if s["program_id"] == "a"] == ["x", "y"]


async def test_a_program_that_was_silent_has_ended(rig) -> None:
    async with rig(program_ttl_s=0.05) as r:
        await r.chat(headers=headers("a"))
        await asyncio.sleep(0.1)
        assert (await r.client.get("/v1/programs/a")).json()["ended"]
        await r.chat(headers=headers("a"))
        result, programs, _ = r.tables()
    assert result.programs == 2
    assert programs[1]["program_id"].startswith("a#")


async def test_a_program_on_several_models_is_no_models(rig) -> None:
    async with rig() as r:
        await r.chat(headers=headers("a"))
        await r.chat(headers=headers("a"), model="big")
        _, programs, stages = r.tables()
    assert programs[0]["error"] == "its requests went to several models: small, large"
    assert [s["model"] for s in stages] == ["small", "large"]


async def test_a_disk_that_fails_does_not_stop_what_is_recorded(rig, monkeypatch) -> None:
    async with rig() as r:
        await r.chat(headers=headers("a"))

        def full(*_: object) -> list[int]:
            raise ChimeraError("the disk is full")

        monkeypatch.setattr(r.journal, "append", full)
        assert (await r.chat(headers=headers("a"))).status_code == 200
        assert (await r.outcome("a", score=1)).status_code == 500
        health = await r.client.get("/health")
        assert (health.status_code, health.json()["lost"]) == (503, 1)
        monkeypatch.undo()
        await r.chat(headers=headers("a"))
        _, programs, _ = r.tables()
    assert "was not stored" in programs[0]["error"]


REFUSED = [
    ("chat/completions", {"messages": ASK}, 400, "provide a 'model' parameter"),
    ("chat/completions", {"messages": ASK, "model": "gpt"}, 404, "'gpt' does not exist"),
    ("chat/completions", {"model": "small"}, 400, "'messages' is missing"),
    ("chat/completions", "{not json", 400, "not valid JSON"),
    ("chat/completions", b"\xff\xfe", 400, "not valid JSON"),
    ("embeddings", {"model": "small"}, 404, "does not answer POST /v1/embeddings"),
    ("programs/none/outcome", {"score": 1}, 404, "no request named it"),
    ("programs/p/outcome", {"score": 1.5}, 400, "less than or equal to 1"),
    ("programs/p/outcome", {"score": -1}, 400, "greater than or equal to 0"),
    ("programs/p/outcome", {}, 400, "either 'score', from 0 to 1, or 'correct'"),
    ("programs/p/outcome", {"score": 1, "correct": True}, 400, "either"),
    ("programs/p/outcome", {"score": 1, "grade": 1}, 400, "grade"),
    ("programs/p/outcome", {"correct": "yes"}, 400, "correct"),
    ("programs/p/outcome", [1], 400, "must be a JSON object"),
    ("chat/completions", {"model": "small", "messages": ["x" * 3000]}, 413, "larger than"),
]


async def test_what_cannot_be_answered_is_said(rig) -> None:
    async with rig(body_limit_bytes=2000) as r:
        await r.chat(headers=headers("p"))
        for path, body, status, words in REFUSED:
            content = body if isinstance(body, bytes | str) else json.dumps(body)
            answer = await r.client.post(f"/v1/{path}", content=content)
            error = answer.json()["error"]
            assert answer.status_code == status, body
            assert words in error["message"]
            assert (error["code"] == "model_not_found") == ("'gpt'" in error["message"])
        assert len(r.journal.entries) == 1  # nothing of it is recorded


async def test_lone_surrogates_of_an_engine_can_be_stored(rig) -> None:
    async with rig() as r:
        choice = {"index": 0, "message": {"content": "\ud800!"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        raw = json.dumps({"choices": [choice], "usage": usage})
        r.engines["big"].answer = lambda: Response(raw, media_type="application/json")
        await r.chat(model="big")
        _, _, stages = r.tables()
    assert stages[0]["output_text"] == "?!"


async def test_an_engine_that_asks_for_a_key_gets_its_own(rig) -> None:
    own = {"authorization": "Bearer client"}
    async with rig(engine_key="sk-engine") as r:
        await r.chat(model="one", headers=own)
        await r.chat(model="two", headers=own)
        sent = [r.engines[name].headers[0]["authorization"] for name in ("one", "two")]
        assert sent == ["Bearer sk-engine", "Bearer client"]

"""One program against a fake engine: order, conditions, texts, counts, retries and failures."""

import asyncio
from typing import Any

import httpx2
import pytest

from chimera_train.collect import request
from chimera_train.collect.request import open_endpoint
from chimera_train.collect.runner import ProgramResult, Sampling, request_seed, run_program
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Workflow

QUESTION = Question("q1", "numbers", "What is {1}?", "1")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "_RETRY_PAUSE_S", 0.0)


SAMPLING = Sampling(seed=7, temperature=0.5)


async def run(
    engine: Any, workflow: Workflow, sampling: Sampling = SAMPLING, **settings: Any
) -> ProgramResult:
    settings = {"program_id": "p1", "sample": 0, **settings}
    async with open_endpoint(engine.base_url, "fake") as endpoint:
        return await run_program(endpoint, workflow, QUESTION, sampling, **settings)


def dag(*stages: tuple[str, list[str]], answer: str = "d") -> Workflow:
    return Workflow.model_validate(
        {
            "name": "dag",
            "stages": [
                {
                    "id": name,
                    "role": "r",
                    "depends_on": needs,
                    "user": " ".join([name, *(f"{{{need}}}" for need in needs)]),
                    "max_tokens": 5,
                }
                for name, needs in stages
            ],
            "answer": [answer],
        }
    )


DIAMOND = dag(("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["b", "c"]))


async def test_stages_see_the_texts_of_earlier_ones_and_what_was_rejected_is_revised(
    engine: Any, workflow: Workflow
) -> None:
    engine.reply = lambda body: {
        20: "so the answer 5" if len(engine.bodies) < 3 else "no, the answer 6",
        10: "I reject it",
    }[body["max_tokens"]]
    result = await run(engine, workflow)
    assert result.error is None
    assert result.answer == "no, the answer 6"
    assert [stage.stage for stage in result.stages] == ["solve", "verify", "revise"]
    assert [stage.user_text for stage in result.stages] == [
        "What is {1}?",
        "What is {1}?: so the answer 5",
        "What is {1}?: so the answer 5, I reject it",
    ]
    assert [body["messages"] for body in engine.bodies][:2] == [
        [{"role": "user", "content": "What is {1}?"}],
        [
            {"role": "system", "content": "Check it."},
            {"role": "user", "content": "What is {1}?: so the answer 5"},
        ],
    ]
    solve, verify, _ = result.stages
    assert (solve.prompt_tokens, solve.output_tokens, solve.finish_reason) == (3, 4, "stop")
    assert (verify.prompt_tokens, verify.output_tokens, verify.queue_ms) == (9, 3, 1.5)
    assert result.output_tokens == sum(stage.output_tokens for stage in result.stages)


@pytest.mark.parametrize("verdict", ["accept", "well"])
async def test_what_is_not_rejected_is_not_revised(
    engine: Any, workflow: Workflow, verdict: str
) -> None:
    engine.reply = lambda body: verdict if body["max_tokens"] == 10 else "the answer 4"
    result = await run(engine, workflow)
    assert [stage.stage for stage in result.stages] == ["solve", "verify"]
    assert result.answer == "the answer 4"


async def test_every_request_carries_its_settings_and_its_program(
    engine: Any, workflow: Workflow
) -> None:
    await run(engine, workflow, program_id="p9", sample=2)
    for body, headers, stage in zip(
        engine.bodies, engine.headers, ["solve", "verify"], strict=False
    ):
        assert body["model"] == "fake"
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["temperature"] == 0.5
        assert body["seed"] == request_seed(7, "q1", 2, stage)
        assert headers["x-program-id"] == "p9"
        assert headers["x-workflow"] == "check"
        assert headers["x-stage"] == stage


def test_request_seeds_differ_in_every_part_and_fit_31_bits() -> None:
    base = (1, "q", 2, "solve")
    others = [(2, "q", 2, "solve"), (1, "r", 2, "solve"), (1, "q", 3, "solve"), (1, "q", 2, "x")]
    seeds = [request_seed(*key) for key in [base, *others]]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert request_seed(*base) == seeds[0]


async def test_independent_stages_run_at_the_same_time(engine: Any) -> None:
    engine.delay_s = 0.05
    engine.reply = lambda body: body["messages"][0]["content"][0]
    result = await run(engine, DIAMOND)
    assert engine.most_active == 2
    assert [stage.stage for stage in result.stages] == ["a", "b", "c", "d"]
    assert result.stages[3].user_text == "d b c"
    assert result.answer == "d"


async def test_a_stage_starts_when_its_own_dependencies_are_done(engine: Any) -> None:
    """Not when a whole level is: c must not wait for the slow b."""
    workflow = dag(("a", []), ("b", []), ("c", ["a"]), answer="c")
    order: list[str] = []

    def reply(body: dict[str, Any]) -> str:
        order.append(body["messages"][0]["content"][0])
        return "x"

    engine.reply = reply
    original = engine._stream

    async def stream(body: dict[str, Any], mishap: str | None) -> Any:
        if body["messages"][0]["content"] == "b":
            while "c" not in order:
                await asyncio.sleep(0.005)
        async for event in original(body, mishap):
            yield event

    engine._stream = stream
    result = await asyncio.wait_for(run(engine, workflow), timeout=10)
    assert order == ["a", "c", "b"]
    assert result.error is None


async def test_times_are_of_the_stream(engine: Any) -> None:
    engine.delay_s = 0.1
    result = await run(engine, dag(("d", [])))
    (stage,) = result.stages
    assert stage.ttft_ms is not None
    assert 100 <= stage.ttft_ms <= stage.e2e_ms <= result.latency_ms


async def test_a_dropped_connection_is_tried_again_and_counted(engine: Any) -> None:
    engine.mishap = lambda _: "drop" if len(engine.bodies) < 3 else None
    (stage,) = (await run(engine, dag(("d", [])))).stages
    assert (stage.error, stage.attempt) == (None, 3)
    assert len({str(body) for body in engine.bodies}) == 1


async def test_a_connection_that_always_drops_is_an_error(engine: Any) -> None:
    engine.mishap = lambda _: "drop"
    result = await run(engine, dag(("d", [])))
    assert len(engine.bodies) == request._MAX_ATTEMPTS
    assert "connection" in str(result.error)
    assert result.stages[0].attempt == request._MAX_ATTEMPTS


async def test_nothing_is_tried_again_after_the_first_token(engine: Any) -> None:
    engine.mishap = lambda _: "cut"
    engine.reply = lambda _: "one two three"
    result = await run(engine, dag(("d", [])))
    assert len(engine.bodies) == 1
    assert "connection" in str(result.error)
    assert result.stages[0].output_text == "one"
    assert result.answer == "one"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_an_http_error_is_recorded_and_not_tried_again(engine: Any, status: int) -> None:
    engine.mishap = lambda _: status
    result = await run(engine, dag(("d", [])))
    assert len(engine.bodies) == 1
    assert result.error == f"HTTP {status}: no can do"
    assert (result.stages[0].prompt_tokens, result.stages[0].output_tokens) == (0, 0)


@pytest.mark.parametrize(("mishap", "words"), [("no_usage", "usage"), ("no_end", "ended before")])
async def test_a_reply_that_is_not_whole_is_an_error(engine: Any, mishap: str, words: str) -> None:
    engine.mishap = lambda _: mishap
    result = await run(engine, dag(("d", [])))
    assert words in str(result.error)


@pytest.mark.parametrize(
    "line",
    [
        'data: {"error": {"message": "CUDA out of memory"}}',
        'data: {"choices": null}',
        'data: {"choices": [{"index": 0}]}',
        'data: {"choices": [{"index": 0, "delta": "text"}]}',
        'data: {"choices": [], "usage": {"tokens": 1}}',
        "data: [1]",
        "data: {",
    ],
)
async def test_events_that_are_not_a_chat_are_an_error(engine: Any, line: str) -> None:
    engine.mishap = lambda _: line
    result = await run(engine, dag(("d", [])))
    assert result.error is not None
    assert ("CUDA" in result.error) == ("CUDA" in line)


async def test_nothing_is_sent_after_a_failed_stage(engine: Any) -> None:
    engine.mishap = lambda body: 500 if body["messages"][0]["content"][0] == "b" else None
    result = await run(engine, DIAMOND)
    assert [stage.stage for stage in result.stages] == ["a", "b", "c"]
    assert str(result.error).startswith("HTTP 500")


async def test_nothing_listens(workflow: Workflow) -> None:
    async with open_endpoint("http://127.0.0.1:9/v1", "fake") as endpoint:
        result = await run_program(endpoint, workflow, QUESTION, SAMPLING, program_id="p", sample=0)
    assert "connection" in str(result.error)
    assert result.stages[0].ttft_ms is None


async def test_a_silent_endpoint_is_not_asked_twice(engine: Any, workflow: Workflow) -> None:
    engine.delay_s = 5.0
    async with open_endpoint(engine.base_url, "fake") as endpoint:
        next(endpoint.https).timeout = httpx2.Timeout(0.2)
        result = await run_program(endpoint, workflow, QUESTION, SAMPLING, program_id="p", sample=0)
    assert len(engine.bodies) == 1
    assert result.error is not None


VOTE = Workflow.model_validate(
    {
        "name": "vote",
        "stages": [
            {"id": "solve", "role": "solver", "user": "{question}", "fan_out": 3, "max_tokens": 5},
            {
                "id": "judge",
                "role": "judge",
                "depends_on": ["solve"],
                "user": "{solve}",
                "max_tokens": 7,
                "temperature": 0.0,
                "top_p": 0.5,
            },
        ],
        "answer": ["judge"],
    }
)


def mapping() -> Workflow:
    work = {"id": "work", "role": "r", "depends_on": ["split"], "user": "{item}", "max_tokens": 5}
    return Workflow.model_validate(
        {
            "name": "map",
            "stages": [
                {"id": "split", "role": "r", "user": "split", "max_tokens": 9},
                {**work, "fan_out": {"items_of": "split", "max": 3}},
                {
                    "id": "join",
                    "role": "r",
                    "depends_on": ["work"],
                    "user": "join {work}",
                    "max_tokens": 9,
                },
            ],
            "answer": ["join"],
        }
    )


async def test_copies_run_at_once_with_seeds_of_their_own_and_are_seen_numbered(
    engine: Any,
) -> None:
    engine.delay_s = 0.03
    engine.reply = lambda body: f"seed {body['seed']}" if body["max_tokens"] == 5 else "done"
    result = await run(engine, VOTE)
    assert engine.most_active == 3
    *copies, judge = result.stages
    assert [(row.stage, row.branch, row.after) for row in result.stages] == [
        ("solve", 0, ()),
        ("solve", 1, ()),
        ("solve", 2, ()),
        ("judge", None, (0, 1, 2)),
    ]
    seeds = [request_seed(7, "q1", 0, "solve", branch) for branch in range(3)]
    assert [row.seed for row in copies] == seeds
    assert len({*seeds, request_seed(7, "q1", 0, "solve")}) == 4
    assert judge.user_text == "\n\n".join(f"{i}. seed {s}" for i, s in enumerate(seeds, start=1))
    assert result.answer == "done"
    assert (judge.start_ms or 0) >= 30


async def test_sampling_is_the_stages_own_before_the_collections(engine: Any) -> None:
    sampling = Sampling(seed=7, temperature=0.9, top_p=0.8, max_tokens=11)
    result = await run(engine, VOTE, sampling)
    sent = [(body["temperature"], body["top_p"], body["max_tokens"]) for body in engine.bodies]
    assert sent == [(0.9, 0.8, 11)] * 3 + [(0.0, 0.5, 11)]
    rows = [(row.temperature, row.top_p, row.max_tokens) for row in result.stages]
    assert rows == sent
    assert {row.seed for row in result.stages} == {body["seed"] for body in engine.bodies}


async def test_a_stage_maps_over_the_items_of_another_up_to_a_maximum(engine: Any) -> None:
    lists = "Parts:\n\n1. first part\n2) second\n- third"
    engine.reply = lambda body: lists if body["max_tokens"] == 9 else body["messages"][0]["content"]
    result = await run(engine, mapping())
    _, *work, join = result.stages
    assert [row.user_text for row in work] == ["Parts:", "first part", "second"]
    assert join.user_text == "join 1. Parts:\n\n2. first part\n\n3. second"
    assert join.after == (1, 2, 3)


async def test_without_items_nothing_is_mapped_and_what_follows_runs(engine: Any) -> None:
    engine.reply = lambda body: ""
    result = await run(engine, mapping())
    assert [(row.stage, row.after) for row in result.stages] == [("split", ()), ("join", (0,))]
    assert result.stages[1].user_text == "join "


async def test_one_failed_copy_fails_the_program(engine: Any) -> None:
    bad = request_seed(7, "q1", 0, "solve", 1)
    engine.mishap = lambda body: 400 if body["seed"] == bad else None
    result = await run(engine, VOTE)
    assert result.error == "HTTP 400: no can do"
    assert not result.is_lost
    assert [row.stage for row in result.stages] == ["solve"] * 3


async def test_rows_say_what_they_waited_for(engine: Any, workflow: Workflow) -> None:
    engine.reply = lambda body: body["messages"][0]["content"][0]
    diamond = await run(engine, DIAMOND)
    assert [row.after for row in diamond.stages] == [(), (0,), (0,), (1, 2)]
    engine.reply = lambda _: "reject"
    assert [row.after for row in (await run(engine, workflow)).stages] == [(), (0,), (1,)]
    # What was skipped is not waited for, but what it waited for is.
    skipping = workflow.model_dump(exclude_none=True)
    skipping["stages"].append(
        {"id": "end", "role": "r", "depends_on": ["revise"], "user": "{revise}", "max_tokens": 3}
    )
    engine.reply = lambda _: "accept"
    rows = (await run(engine, Workflow.model_validate(skipping))).stages
    assert [(row.stage, row.after) for row in rows] == [
        ("solve", ()),
        ("verify", (0,)),
        ("end", (1,)),
    ]


async def test_a_tool_answers_in_place_of_a_model(engine: Any) -> None:
    values = DIAMOND.model_dump(exclude_none=True)
    values["stages"][1] = {
        "id": "b",
        "tool": "public_tests",
        "depends_on": ["a"],
        "user": "code: {a}",
    }
    seen: list[Any] = []

    def public_tests(question: Question, text: str) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen.append((question, text))
        return "0 of 1 public tests pass: reject"

    engine.reply = lambda body: "x"
    tools = {"public_tests": public_tests}
    result = await run(engine, Workflow.model_validate(values), tools=tools)
    assert seen == [(QUESTION, "code: x")]
    row = result.stages[1]
    assert (row.stage, row.tool, row.output_text) == (
        "b",
        "public_tests",
        "0 of 1 public tests pass: reject",
    )
    assert (row.prompt_tokens, row.output_tokens, row.max_tokens, row.seed) == (0, 0, None, None)
    assert result.stages[3].user_text == "d 0 of 1 public tests pass: reject x"
    assert len(engine.bodies) == 3


async def test_thinking_is_kept_from_later_stages_and_counted(
    engine: Any, workflow: Workflow
) -> None:
    engine.thought = "let me see"
    engine.usage = {"completion_tokens_details": {"reasoning_tokens": 3}}
    result = await run(engine, workflow)
    assert {row.reasoning_text for row in result.stages} == {"let me see "}
    assert {row.reasoning_tokens for row in result.stages} == {3}
    assert "let me see" not in str(engine.bodies)


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>two is 2</think>\n\nthe answer 2", "two is 2", "the answer 2"),
        ("two is 2</think> the answer 2", "two is 2", "the answer 2"),
        ("<think>two is", "two is", ""),
        ("the answer 2", "", "the answer 2"),
    ],
)
async def test_thinking_in_tags_is_cut_off(
    engine: Any, text: str, thought: str, answer: str
) -> None:
    engine.reply = lambda _: text
    (row,) = (await run(engine, dag(("d", [])))).stages
    assert (row.reasoning_text, row.output_text, row.reasoning_tokens) == (thought, answer, None)


async def test_only_a_lost_connection_is_a_loss(engine: Any) -> None:
    engine.mishap = lambda _: "cut"
    assert (await run(engine, dag(("d", [])))).is_lost
    engine.mishap = lambda _: 500
    assert not (await run(engine, dag(("d", [])))).is_lost

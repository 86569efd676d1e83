"""Batches are formed from what waits, and every request gets its own prediction."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np

from chimera_train.history import History
from chimera_train.predict.features import StageRequest
from chimera_train.runtime.predictions import Batcher, Predictors, Query, predict_batch


async def test_what_arrives_while_a_batch_runs_is_the_next_batch() -> None:
    batches: list[list[int]] = []
    go = threading.Event()

    def work(items: Sequence[int]) -> list[int]:
        batches.append(list(items))
        assert threading.current_thread() is not threading.main_thread()
        go.wait(5)
        return [item * 10 for item in items]

    batcher = Batcher(work, max_batch=3)
    first = asyncio.create_task(batcher(0))
    while not batches:
        await asyncio.sleep(0.001)
    others = [asyncio.create_task(batcher(item)) for item in range(1, 6)]
    await asyncio.sleep(0.01)
    others[1].cancel()
    await asyncio.sleep(0)
    go.set()
    assert await first == 0
    results = await asyncio.gather(*others, return_exceptions=True)
    assert [results[0], *results[2:]] == [10, 30, 40, 50]
    assert isinstance(results[1], asyncio.CancelledError)
    assert batches == [[0], [1, 3], [4, 5]], "at most three taken, the cancelled one left out"
    batcher.close()


async def test_one_bad_item_fails_alone() -> None:
    def work(items: Sequence[int]) -> list[int]:
        if 2 in items:
            raise ValueError("two")
        return [item * 10 for item in items]

    batcher = Batcher(work, max_batch=10)
    results = await asyncio.gather(*(batcher(i) for i in range(5)), return_exceptions=True)
    assert results[:2] + results[3:] == [0, 10, 30, 40]
    assert isinstance(results[2], ValueError)
    batcher.close()


HISTORY = History().after("plan", 50, 7)


class FakeRouter:
    models = ("b", "a")
    reads = "user"

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[len(text), -len(text)] for text in texts], dtype=np.float32)


class FakeLength:
    calls: list[tuple[str, list[StageRequest]]]

    def __init__(self) -> None:
        self.calls = []

    def template_overhead_tokens(self, model: str) -> int:
        return {"a": 100, "b": 200}[model]

    def predict_with_interval(self, model, requests) -> tuple[np.ndarray, ...]:
        self.calls.append((model, list(requests)))
        tokens = np.array([r.prompt_tokens for r in requests])
        return tokens + 0.5, tokens / 4, np.stack([tokens / 2, tokens * 2], axis=1)


class Letters:
    def __init__(self) -> None:
        self.counted: list[str] = []

    def count(self, text: str) -> int:
        self.counted.append(text)
        return len(text)


def query(text: str, engines: Sequence[int], **flags: bool) -> Query:
    return Query("w", "s", "sys", text, 1000, HISTORY, engines, **{
        "with_lengths": True, "with_confidence": True, **flags,
    })  # fmt: skip


def test_the_router_reads_what_it_was_fitted_on() -> None:
    router = FakeRouter()
    predictors = Predictors(("b",), router, FakeLength(), {"b": Letters()})
    for reads, expected in (("user", "xx"), ("system+user", "sys\n\nxx")):
        router.reads = reads
        (found,) = predict_batch(predictors, [query("xx", [0], with_lengths=False)])
        assert found.confidence.tolist() == [len(expected)]


def test_predictions_belong_to_engines_not_models() -> None:
    """Three engines, two of them replicas; the router knows its models in another order."""
    length, counter = FakeLength(), Letters()
    predictors = Predictors(("a", "b", "a"), FakeRouter(), length, {"a": counter, "b": counter})
    both, known, none = predict_batch(
        predictors,
        [
            query("xx", range(3)),
            query("yyy", [1], with_confidence=False),
            query("z", range(3), with_lengths=False, with_confidence=False),
        ],
    )
    assert both.confidence is not None
    assert both.confidence.tolist() == [-2.0, 2.0, -2.0]
    assert both.remaining_tokens.tolist() == [1105.5, 1205.5, 1105.5]
    assert both.overrun_tokens.tolist() == [276.25, 301.25, 276.25]
    assert known.confidence is None
    assert known.remaining_tokens.tolist() == [0.0, 1206.5, 0.0]
    assert (none.confidence, none.remaining_tokens, none.overrun_tokens) == (None, None, None)
    assert [(model, len(requests)) for model, requests in length.calls] == [("a", 1), ("b", 2)]
    assert length.calls[0][1] == [StageRequest("w", "s", "xx", 3, 1002, 1105, HISTORY)]
    assert sorted(counter.counted) == ["sys", "sys", "xx", "yyy"], "a shared tokenizer counts once"

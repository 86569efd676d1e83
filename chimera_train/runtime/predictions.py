"""Predictions off the event loop, several requests at a time.

One thread evaluates router and forests, which release the GIL. While it works on a batch, new
requests gather and become the next batch, so batches grow with load and an idle gateway waits for
nobody.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from chimera_train.history import History
from chimera_train.predict.features import StageRequest
from chimera_train.predict.router import confidences
from chimera_train.predict.router_text import Reads, router_text

__all__ = ["Batcher", "Prediction", "Predictors", "Query", "predict_batch"]

Q = TypeVar("Q")
R = TypeVar("R")
_Floats = npt.NDArray[np.floating[Any]]


class Router(Protocol):
    """Confidence that each of ``models`` answers a program's question right."""

    @property
    def models(self) -> Sequence[str]: ...

    @property
    def reads(self) -> Reads: ...

    def predict(self, texts: Sequence[str]) -> _Floats: ...


class Length(Protocol):
    """Remaining output tokens of a program from one of its stages on."""

    def template_overhead_tokens(self, model: str) -> int: ...

    def predict_with_interval(
        self, model: str, requests: Sequence[StageRequest]
    ) -> tuple[_Floats, _Floats, _Floats]: ...


class Counter(Protocol):
    """Tokens of a plain text."""

    def count(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Predictors:
    """What a bundle predicts with.

    Attributes:
        models: the model of each engine.
        router: chances of success by model.
        length: remaining lengths by model.
        token_counters: each model's tokenizer.
    """

    models: Sequence[str]
    router: Router
    length: Length
    token_counters: Mapping[str, Counter]


@dataclass(frozen=True, slots=True)
class Query:
    """What is to be predicted for one request.

    Attributes:
        system_text, user_text: the prompt.
        token_ids: prompt tokens that came as ids.
        history: what the program has done before.
        engines: the engines that may get the request; ŷ is predicted for their models.
        with_lengths, with_confidence: which predictions the policy needs.
    """

    workflow: str
    stage: str
    system_text: str
    user_text: str
    token_ids: int
    history: History
    engines: Sequence[int]
    with_lengths: bool
    with_confidence: bool


@dataclass(slots=True)
class Prediction:
    """What was predicted.

    Attributes:
        remaining_tokens: ŷ of each engine, shape (n_engines,), 0 for those not asked for; None if
            the policy does not need it.
        overrun_tokens: what more is expected of a program that has outlived ŷ; likewise.
        interval_tokens: the quantiles around ŷ that four lengths in five lie between, shape
            (n_engines, 2); likewise.
        confidence: q of each engine, shape (n_engines,), or None.
    """

    remaining_tokens: npt.NDArray[np.float64] | None
    overrun_tokens: npt.NDArray[np.float64] | None
    interval_tokens: npt.NDArray[np.float64] | None
    confidence: npt.NDArray[np.float64] | None


def predict_batch(predictors: Predictors, queries: Sequence[Query]) -> list[Prediction]:
    """Predict for several requests at once: one router call, one forest call for each model."""
    remaining_tokens, overrun_tokens, interval_tokens = _lengths(predictors, queries)
    confidence = _confidence(predictors, queries)
    return [
        Prediction(
            remaining_tokens[index] if query.with_lengths else None,
            overrun_tokens[index] if query.with_lengths else None,
            interval_tokens[index] if query.with_lengths else None,
            confidence[index] if query.with_confidence else None,
        )
        for index, query in enumerate(queries)
    ]


def _confidence(predictors: Predictors, queries: Sequence[Query]) -> npt.NDArray[np.float64]:
    """q, shape (n, n_engines); rows that were not asked for are zero."""
    result = np.zeros((len(queries), len(predictors.models)))
    asked = [index for index, query in enumerate(queries) if query.with_confidence]
    if asked:
        router = predictors.router
        texts = [
            router_text(router.reads, queries[index].system_text, queries[index].user_text)
            for index in asked
        ]
        result[asked] = confidences(router, predictors.models, texts)
    return result


def _lengths(
    predictors: Predictors, queries: Sequence[Query]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """ŷ and what is left beyond it, shape (n, n_engines), and the interval, (n, n_engines, 2).

    What was not asked for is zero.
    """
    remaining, overrun = np.zeros((2, len(queries), len(predictors.models)))
    interval = np.zeros((*remaining.shape, 2))
    counts = _PromptTokens(queries)
    for model in dict.fromkeys(predictors.models):
        engines = [e for e, served in enumerate(predictors.models) if served == model]
        asked = [
            index
            for index, query in enumerate(queries)
            if query.with_lengths and not set(engines).isdisjoint(query.engines)
        ]
        if asked:
            overhead = predictors.length.template_overhead_tokens(model)
            counter = predictors.token_counters[model]
            requests = [
                _stage_request(queries[index], counts.of(index, counter), overhead)
                for index in asked
            ]
            median, beyond, ends = predictors.length.predict_with_interval(model, requests)
            remaining[np.ix_(asked, engines)] = median[:, None]
            overrun[np.ix_(asked, engines)] = beyond[:, None]
            interval[np.ix_(asked, engines)] = ends[:, None]
    return remaining, overrun, interval


class Batcher(Generic[Q, R]):
    """Runs ``work`` on batches of whatever was asked for while it was busy.

    Args:
        work: results of a batch, in its order; called from one thread, one batch at a time.
        max_batch: most items in a batch.
    """

    def __init__(self, work: Callable[[Sequence[Q]], Sequence[R]], max_batch: int) -> None:
        self._work = work
        self._max_batch = max_batch
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self._pending: list[tuple[Q, asyncio.Future[R]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def __call__(self, item: Q) -> R:
        """The result for ``item``; raises what ``work`` raises for it."""
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._pending.append((item, result))
        if self._worker is None:
            self._worker = asyncio.create_task(self._run())
        return await result

    def close(self) -> None:
        """Stop the thread, after the batch it works on."""
        self._executor.shutdown()

    async def _run(self) -> None:
        while self._pending:
            batch = self._pending[: self._max_batch]
            del self._pending[: self._max_batch]
            await self._resolve([entry for entry in batch if not entry[1].done()])
        self._worker = None

    async def _resolve(self, batch: Sequence[tuple[Q, asyncio.Future[R]]]) -> None:
        items = [item for item, _ in batch]
        loop = asyncio.get_running_loop()
        try:
            values = await loop.run_in_executor(self._executor, self._work, items)
        except Exception as error:
            if len(batch) > 1:
                # Nobody shall fail for another's request: each is tried alone.
                for entry in batch:
                    await self._resolve([entry])
            elif not batch[0][1].done():
                batch[0][1].set_exception(error)
            return
        for (_, result), value in zip(batch, values, strict=True):
            if not result.done():  # cancelled meanwhile
                result.set_result(value)


class _PromptTokens:
    """System and user tokens of queries, counted once for models that share a tokenizer."""

    def __init__(self, queries: Sequence[Query]) -> None:
        self._queries = queries
        self._counted: dict[tuple[int, Counter], tuple[int, int]] = {}

    def of(self, index: int, counter: Counter) -> tuple[int, int]:
        key = (index, counter)
        if key not in self._counted:
            query = self._queries[index]
            user = counter.count(query.user_text) + query.token_ids
            self._counted[key] = counter.count(query.system_text), user
        return self._counted[key]


def _stage_request(query: Query, tokens: tuple[int, int], overhead: int) -> StageRequest:
    system, user = tokens
    return StageRequest(
        workflow=query.workflow,
        stage=query.stage,
        text=query.user_text,
        system_tokens=system,
        user_tokens=user,
        prompt_tokens=system + user + overhead,
        history=query.history,
    )

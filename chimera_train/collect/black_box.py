"""Profiling an engine that is only reached over HTTP: streamed requests, and when tokens arrive.

The grid of batches is that of :mod:`chimera_train.collect.step_plan`, with two differences. Prompts
are prefilled one at a time, since requests that are sent together may be computed together or one
after another. And a batch decodes longer where its prompts take several steps, since only those
steps are measured in which all of it decodes. What the arrival times of tokens say is in
:mod:`chimera_train.collect.token_times`.

The engine must be idle: what it did for others is noticed, and the profile refused.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import httpx2
import numpy as np
import openai

from chimera_train.collect.alive import require_alive
from chimera_train.collect.request import Endpoint, open_endpoint
from chimera_train.collect.step_plan import Cell, plan_cells
from chimera_train.collect.token_stream import stream_tokens
from chimera_train.collect.token_times import (
    Row,
    decode_row,
    floor_s,
    mixed_row,
    prefill_row,
    ttft_s,
)
from chimera_train.errors import EngineError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.probe import metric_samples
from chimera_train.pool.schema import EngineInfo

__all__ = ["HttpProfile", "profile"]

# No cell of several requests may take more of the budget than this for its prompts alone.
_CELL_SHARE = 0.05
_PROBE_TOKENS = 8  # of a request that shows the floor
_TTFT_TOKENS = 2  # of a prompt that is alone: the second shows whether the first came late
_REPEATS = 3  # of a prompt that is alone
_APART_TOKENS = 4  # that a batch decodes between two prompts that arrive
_POLL_S = 0.001
# A measurement during which this process was kept from running for longer is left out: tokens that
# came meanwhile look as if they had come together, afterwards.
_HELD_UP_S = 0.01
_PULSE_S = 0.002
_LARGEST_VOCABULARY_BITS = 16
_SMALLEST_VOCABULARY_BITS = 4
# vLLM 0.32 on the CPU dies of a prompt of one or two tokens if it is its first.
_FIRST_PROMPT_TOKENS = 16
_SETTLED_S = 2.0  # until an engine has counted what it has answered


@dataclass(frozen=True, slots=True)
class HttpProfile:
    """What was measured.

    Attributes:
        rows: of the table ``steps``; a row of decoding is the mean of several steps alike.
        floor_ms: quartiles of what a request costs beside its steps (see ``token_times``); empty
            if it was never seen.
        unclear: batches and prompts whose tokens' times did not show a step, or were not seen in
            time.
    """

    rows: list[Row]
    floor_ms: list[float]
    unclear: int


def profile(
    engine: RunningEngine, info: EngineInfo, *, budget_s: float, seed: int, output: Output
) -> HttpProfile:
    """Put the load on ``engine`` for ``budget_s`` after warming up.

    Raises:
        ConfigError: the engine is too small to profile.
        EngineError: it died, refused or cut a request, or served others meanwhile.
    """
    before = _prompt_tokens(engine)
    try:
        load = asyncio.run(_measure(engine, info, budget_s, np.random.default_rng(seed), output))
    except (openai.APIError, httpx2.TransportError) as error:
        require_alive(engine)
        raise EngineError(
            f"Engine '{engine.spec.name}' refused a profiling request: {error}."
        ) from error
    _require_undisturbed(engine, before + load.sent_tokens)
    rows, unclear = load.rows()
    quartiles = np.quantile(load.floors_s, [0.25, 0.5, 0.75]) if load.floors_s else np.empty(0)
    return HttpProfile(rows, (1000 * quartiles).tolist(), unclear)


def _prompt_tokens(engine: RunningEngine) -> float:
    samples = metric_samples(engine.base_url, engine.spec.name)
    return sum(sample.value for sample in samples if sample.name == "vllm:prompt_tokens_total")


def _require_undisturbed(engine: RunningEngine, expected: float) -> None:
    deadline = time.monotonic() + _SETTLED_S
    while (counted := _prompt_tokens(engine)) < expected and time.monotonic() < deadline:
        time.sleep(0.1)
    if counted != expected:
        raise EngineError(
            f"Engine '{engine.spec.name}' computed {counted - expected:+g} prompt tokens beside the"
            " profile's: profile it while nobody else uses it."
        )


async def _measure(
    engine: RunningEngine,
    info: EngineInfo,
    budget_s: float,
    rng: np.random.Generator,
    output: Output,
) -> "_Load":
    async with open_endpoint(
        engine.base_url, engine.served_model, api_key=engine.api_key
    ) as endpoint:
        load = _Load(endpoint, info, rng)
        pulse = asyncio.create_task(load.watch_itself())
        rate = await load.warm_up()
        cells = plan_cells(info, rate * budget_s * _CELL_SHARE, rng)
        start_s = time.monotonic()
        with output.progress() as progress:
            line = progress.add_task(engine.spec.name, total=round(budget_s), note="s")
            while (elapsed_s := time.monotonic() - start_s) < budget_s:
                await load.run(next(cells))
                progress.update(line, completed=int(elapsed_s))
        pulse.cancel()
    return load


class _Load:
    """Sends batches of random prompts, and keeps what their tokens' times show.

    Attributes:
        sent_tokens: prompt tokens of all requests.
        floors_s: what a request costs beside its steps, as often as it was measured.
    """

    def __init__(self, endpoint: Endpoint, info: EngineInfo, rng: np.random.Generator) -> None:
        self.sent_tokens = 0
        self.floors_s: list[float] = []
        self._endpoint = endpoint
        self._info = info
        self._rng = rng
        self._vocabulary = 1
        self._held_up_s = 0.0
        self._batches: list[Row | None] = []
        self._prefills: list[tuple[float, int]] = []

    async def warm_up(self) -> float:
        """Touch all regimes once; prompt tokens per second of a prefill."""
        info = self._info
        await self._find_vocabulary()
        tokens = min(info.max_num_batched_tokens, info.max_model_len // 2)
        if info.max_num_seqs > 1:
            await self._mixed(Cell("mixed", 1, tokens, 16, tokens))
        self._batches.clear()
        start_s = time.perf_counter()
        await self._send([[]], tokens, 1)
        return tokens / (time.perf_counter() - start_s)

    async def run(self, cell: Cell) -> None:
        """Run one cell to its end."""
        kinds = {"decode": self._decode, "prefill": self._prefill, "mixed": self._mixed}
        await kinds[cell.kind](cell)

    def rows(self) -> tuple[list[Row], int]:
        """What was measured, and how many measurements showed nothing."""
        floor = median(self.floors_s) if self.floors_s else math.inf
        budget = self._info.max_num_batched_tokens
        prefills = [prefill_row(first_s, floor, n, budget) for first_s, n in self._prefills]
        found = [row for row in self._batches + prefills if row is not None]
        # No step takes half the time of the quickest that only decode: what does is noise.
        decodes = [row["step_ms"] for row in found if row["prefill_tokens"] == 0]
        least_ms = np.quantile(decodes, 0.1) / 2 if decodes else 0.0
        found = [row for row in found if row["step_ms"] >= least_ms]
        rows = [{"step": step, **row} for step, row in enumerate(found)]
        return rows, len(self._batches) + len(prefills) - len(rows)

    async def watch_itself(self) -> None:
        """Note when this process was last kept from running; until cancelled."""
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_PULSE_S)
            now_s = time.perf_counter()
            if now_s - before_s - _PULSE_S > _HELD_UP_S:
                self._held_up_s = now_s

    async def _is_timely(self, since_s: float) -> bool:
        """Whether this process was never kept from running since then."""
        await asyncio.sleep(2 * _PULSE_S)  # the watch has its turn
        return self._held_up_s < since_s

    async def _decode(self, cell: Cell) -> None:
        times = _no_tokens(cell)
        sent_s = await self._send(times, cell.prompt_tokens, self._output_tokens(cell))
        row = decode_row(times, cell.prompt_tokens)
        self._batches.append(row if await self._is_timely(sent_s) else None)

    async def _mixed(self, cell: Cell) -> None:
        times, arrivals_s = _no_tokens(cell), []
        arriving = min(cell.arriving_tokens, self._info.max_num_batched_tokens - cell.n_seqs)
        batch = asyncio.create_task(
            self._send(times, cell.prompt_tokens, self._output_tokens(cell))
        )
        wanted = _APART_TOKENS
        while not batch.done():
            if min(map(len, times)) < wanted:
                await asyncio.sleep(_POLL_S)
                continue
            arrival: list[list[float]] = [[]]
            await self._send(arrival, arriving, 1)
            arrivals_s.append(arrival[0][0])
            wanted = min(map(len, times)) + _APART_TOKENS
        sent_s = await batch
        row = mixed_row(times, cell.prompt_tokens, arrivals_s, arriving)
        self._batches.append(row if await self._is_timely(sent_s) else None)

    async def _prefill(self, cell: Cell) -> None:
        n, budget = cell.prompt_tokens, self._info.max_num_batched_tokens
        n -= n % budget if n > budget else 0
        ttfts_s = []
        for _ in range(_REPEATS):
            floor = await self._alone(1, _PROBE_TOKENS, floor_s)
            self.floors_s += [] if floor is None else [floor]
            first_s = await self._alone(n, _TTFT_TOKENS, ttft_s)
            ttfts_s += [] if first_s is None else [first_s]
        self._prefills.append((median(ttfts_s) if ttfts_s else 0.0, n))

    async def _alone(
        self,
        prompt_tokens: int,
        output_tokens: int,
        reading: Callable[[float, Sequence[float]], float | None],
    ) -> float | None:
        """What ``reading`` says of a prompt that is alone; None also if it was not seen in time."""
        times: list[list[float]] = [[]]
        sent_s = await self._send(times, prompt_tokens, output_tokens)
        return reading(sent_s, times[0]) if await self._is_timely(sent_s) else None

    def _output_tokens(self, cell: Cell) -> int:
        """The cell's, and one for each step that computes its prompts."""
        steps = -(-cell.n_seqs * cell.prompt_tokens // self._info.max_num_batched_tokens)
        return min(cell.output_tokens + steps, self._info.max_model_len - cell.prompt_tokens)

    async def _find_vocabulary(self) -> None:
        """The largest power of two of token ids that the engine takes."""
        for bits in range(_LARGEST_VOCABULARY_BITS, _SMALLEST_VOCABULARY_BITS - 1, -1):
            self._vocabulary = 1 << bits
            try:
                # Not streamed, or it would be refused in the stream.
                await self._endpoint.client.completions.create(
                    model=self._endpoint.model,
                    prompt=[self._vocabulary - 1] * _FIRST_PROMPT_TOKENS,
                    max_tokens=1,
                )
            except openai.BadRequestError:
                if bits == _SMALLEST_VOCABULARY_BITS:
                    raise
            else:
                self.sent_tokens += _FIRST_PROMPT_TOKENS
                return

    async def _send(
        self, times: list[list[float]], prompt_tokens: int, output_tokens: int
    ) -> float:
        """Fill ``times`` while the tokens of so many random prompts arrive; when they were sent."""
        prompts = self._rng.integers(self._vocabulary, size=(len(times), prompt_tokens)).tolist()
        sent_s = await stream_tokens(self._endpoint, prompts, output_tokens, times)
        self.sent_tokens += len(times) * prompt_tokens
        return sent_s


def _no_tokens(cell: Cell) -> list[list[float]]:
    return [[] for _ in range(cell.n_seqs)]

"""Puts the batches of a profiling plan on an engine."""

import asyncio
import time
from typing import Any

import numpy as np

from chimera_train.collect.device import read_clocks
from chimera_train.collect.request import Endpoint
from chimera_train.collect.step_plan import Cell
from chimera_train.collect.token_stream import stream_tokens
from chimera_train.pool.schema import EngineInfo

__all__ = ["Load"]


class Load:
    """Sends batches of random prompts, of which a prefix cache knows nothing.

    Args:
        endpoint: of the engine.
        engine: its limits.
        vocabulary: number of token ids it knows.
        rng: draws the prompts.
    """

    def __init__(
        self, endpoint: Endpoint, engine: EngineInfo, vocabulary: int, rng: np.random.Generator
    ) -> None:
        self._endpoint = endpoint
        self._vocabulary = vocabulary
        self._rng = rng
        self._is_decoding = False
        # A full prefill batch.
        self._prompt_tokens = min(engine.max_num_batched_tokens, engine.max_model_len // 2)
        fitting = engine.max_num_batched_tokens // self._prompt_tokens
        self._n_seqs = max(1, min(fitting, engine.max_num_seqs))

    async def warm_up(self) -> float:
        """Touch all regimes once; prompt tokens per second of a full prefill batch."""
        await self.run(Cell("mixed", 1, self._prompt_tokens, 16, self._prompt_tokens))
        await self._prefill()
        start_s = time.monotonic()
        await self._prefill()
        return self._n_seqs * self._prompt_tokens / (time.monotonic() - start_s)

    async def clocks(self) -> dict[str, Any]:
        """The device's clocks while the engine works: an idle GPU lowers them."""
        reading = asyncio.create_task(asyncio.to_thread(read_clocks))
        while not reading.done():
            await self._prefill()
        return await reading

    async def run(self, cell: Cell) -> None:
        """Run one cell to its end."""
        self._is_decoding = True
        await asyncio.gather(self._batch(cell), self._arrivals(cell))

    async def _batch(self, cell: Cell) -> None:
        try:
            await self._send(cell.n_seqs, cell.prompt_tokens, cell.output_tokens)
        finally:
            self._is_decoding = False

    async def _arrivals(self, cell: Cell) -> None:
        while self._is_decoding and cell.arriving_tokens:
            await self._send(1, cell.arriving_tokens, 1)

    async def _prefill(self) -> None:
        await self._send(self._n_seqs, self._prompt_tokens, 1)

    async def _send(self, n_seqs: int, prompt_tokens: int, output_tokens: int) -> None:
        prompts = self._rng.integers(self._vocabulary, size=(n_seqs, prompt_tokens))
        # Streamed, as every request is that goes through the gateway: it costs the engine time.
        await stream_tokens(
            self._endpoint, prompts.tolist(), output_tokens, [[] for _ in range(n_seqs)]
        )

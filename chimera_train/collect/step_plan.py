"""Which batches an engine is profiled with: batch sizes × prompt lengths in three regimes.

A *decode* cell is a batch of prompts that then decode together; the requests of a *prefill* cell
end with their first token; in a *mixed* cell single prompts arrive while a batch decodes. A
step-time model needs at least four lengths by four sizes to hold over context; here it is five by
five. The first pass visits the points of that grid, its corners included; later passes draw every
cell anew between its point and the next smaller one, so that sizes between the points are seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, repeat, zip_longest
from typing import Literal

import numpy as np

from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineInfo

__all__ = ["Cell", "Kind", "plan_cells"]

Kind = Literal["decode", "prefill", "mixed"]

_POINTS = 5
_SHORTEST_PROMPT = 16
# Steps of one batch are much alike: a few of them, then another batch.
_OUTPUT_TOKENS: dict[Kind, int] = {"decode": 12, "prefill": 1, "mixed": 32}
_LONGEST_OUTPUT = max(_OUTPUT_TOKENS.values())


@dataclass(frozen=True, slots=True)
class Cell:
    """``n_seqs`` requests sent together, each of ``prompt_tokens`` in and ``output_tokens`` out.

    ``arriving_tokens`` is the length of the prompts that arrive while they decode; 0 where none
    do.
    """

    kind: Kind
    n_seqs: int
    prompt_tokens: int
    output_tokens: int
    arriving_tokens: int


def plan_cells(
    engine: EngineInfo, max_prompt_tokens: float, rng: np.random.Generator
) -> Iterator[Cell]:
    """Cells that fit the engine, without end: the regimes in turn, in random order each.

    Cells of several requests with more than ``max_prompt_tokens`` prompt tokens in all are left
    out: one of them would use up the time of many.

    Raises:
        ConfigError: the engine's context or KV cache is too small for any cell.
    """
    longest = engine.max_model_len - _LONGEST_OUTPUT
    lengths = _points(_SHORTEST_PROMPT, longest) if longest >= _SHORTEST_PROMPT else []
    sizes = _points(1, engine.max_num_seqs)
    for exact in chain([True], repeat(False)):
        by_kind = []
        for kind in _OUTPUT_TOKENS:
            cells = [
                Cell(
                    kind,
                    size if exact else _up_to(size, sizes, rng),
                    length if exact else _up_to(length, lengths, rng),
                    _OUTPUT_TOKENS[kind],
                    _log_uniform(lengths[0], lengths[-1], rng) if kind == "mixed" else 0,
                )
                for size in sizes
                for length in lengths
            ]
            cells = [cell for cell in cells if _fits(cell, engine, max_prompt_tokens)]
            by_kind.append([cells[index] for index in rng.permutation(len(cells))])
        if exact and not any(by_kind):
            raise ConfigError(
                f"The engine is too small to profile (max_model_len {engine.max_model_len},"
                f" {engine.num_kv_blocks} KV blocks of {engine.block_size} tokens): it must hold"
                f" {_SHORTEST_PROMPT + _LONGEST_OUTPUT} tokens."
            )
        yield from filter(None, chain.from_iterable(zip_longest(*by_kind)))


def _points(low: int, high: int) -> list[int]:
    """At most ``_POINTS`` whole numbers from ``low`` to ``high``, in equal ratios."""
    return sorted({round(x) for x in np.geomspace(low, high, _POINTS)})


def _up_to(point: int, points: list[int], rng: np.random.Generator) -> int:
    """A number above the next smaller point, up to ``point``."""
    index = points.index(point)
    low = points[index - 1] + 1 if index else point
    return _log_uniform(low, point, rng)


def _log_uniform(low: int, high: int, rng: np.random.Generator) -> int:
    return round(np.exp(rng.uniform(np.log(low), np.log(high))))


def _fits(cell: Cell, engine: EngineInfo, max_prompt_tokens: float) -> bool:
    sequences = [cell.prompt_tokens + cell.output_tokens] * cell.n_seqs
    if cell.kind == "mixed":
        sequences.append(cell.arriving_tokens + 1)
    blocks = sum(-(-tokens // engine.block_size) for tokens in sequences)
    is_affordable = cell.n_seqs * cell.prompt_tokens <= max_prompt_tokens
    return (
        len(sequences) <= engine.max_num_seqs
        and blocks < engine.num_kv_blocks  # one block is vLLM's own placeholder
        and (is_affordable or cell.n_seqs == 1)
    )

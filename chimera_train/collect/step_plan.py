"""Which batches an engine is profiled with: prompt lengths × batch sizes in three regimes.

A *decode* cell is a batch of prompts that then decode together; the requests of a *prefill* cell
end with their first token; in a *mixed* cell single prompts arrive while a batch decodes. A
step-time model needs at least four lengths by four sizes to hold over context; here it is five
lengths, up to the engine's context, by five sizes, up to the most sequences of that length that it
can hold. Every other pass visits the points of that grid again, which shows how much the time of
the same batch varies; the passes between draw every cell anew between its point and the next
smaller one, so that lengths and sizes between the points are seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, zip_longest
from typing import Literal

import numpy as np

from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineInfo

__all__ = ["REGIME_OF", "Cell", "Kind", "is_repeat", "plan_cells", "plan_passes"]

Kind = Literal["decode", "prefill", "mixed"]

_POINTS = 5
_SHORTEST_PROMPT = 16
# Steps of one batch are much alike: a few of them, then another batch.
_OUTPUT_TOKENS: dict[Kind, int] = {"decode": 12, "prefill": 1, "mixed": 32}
_LONGEST_OUTPUT = max(_OUTPUT_TOKENS.values())

#: The steps that a kind of cell is there for.
REGIME_OF: dict[Kind, str] = {
    "decode": "decode_only",
    "prefill": "prefill_only",
    "mixed": "mixed",
}


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


def is_repeat(number: int) -> bool:
    """Whether pass ``number``, from 0 on, visits the points of the grid, as pass 0 does."""
    return number % 2 == 0


def plan_passes(
    engine: EngineInfo, max_prompt_tokens: float, rng: np.random.Generator
) -> Iterator[list[Cell]]:
    """Passes over the grid, without end: the regimes in turn, in random order each.

    Batches fit the KV cache, so that no request is preempted, and those of several requests have at
    most ``max_prompt_tokens`` prompt tokens in all: a larger one would use up the time of many.

    Raises:
        ConfigError: the engine's context or KV cache is too small for any cell.
    """
    longest = engine.max_model_len - _LONGEST_OUTPUT
    lengths = _points(_SHORTEST_PROMPT, longest) if longest >= _SHORTEST_PROMPT else []
    for number in count():
        by_kind = []
        for kind in REGIME_OF:
            cells = _cells(
                kind, lengths, engine, max_prompt_tokens, None if is_repeat(number) else rng
            )
            by_kind.append([cells[index] for index in rng.permutation(len(cells))])
        if not any(by_kind):
            raise ConfigError(
                f"The engine is too small to profile (max_model_len {engine.max_model_len},"
                f" {engine.num_kv_blocks} KV blocks of {engine.block_size} tokens): it must hold"
                f" {_SHORTEST_PROMPT + _LONGEST_OUTPUT} tokens."
            )
        yield list(filter(None, chain.from_iterable(zip_longest(*by_kind))))


def plan_cells(
    engine: EngineInfo, max_prompt_tokens: float, rng: np.random.Generator
) -> Iterator[Cell]:
    """The cells of ``plan_passes``, one after another."""
    return chain.from_iterable(plan_passes(engine, max_prompt_tokens, rng))


def _cells(
    kind: Kind,
    lengths: Sequence[int],
    engine: EngineInfo,
    max_prompt_tokens: float,
    rng: np.random.Generator | None,
) -> list[Cell]:
    """One cell for each point of the grid: at the point, or drawn with ``rng`` up to it."""
    output_tokens = _OUTPUT_TOKENS[kind]
    cells = []
    for i, longest in enumerate(lengths):
        most = _most_seqs(kind, longest, engine, max_prompt_tokens)
        sizes = _points(1, most) if most else []
        for j in range(len(sizes)):
            if rng is None:
                n_seqs, length = sizes[j], longest
                arriving = lengths[(i + j) % len(lengths)]  # each once with each size and length
            else:
                n_seqs, length = _up_to(j, sizes, rng), _up_to(i, lengths, rng)
                arriving = _log_uniform(lengths[0], lengths[-1], rng)
            if kind == "mixed":
                used = n_seqs * _blocks(length + output_tokens, engine)
                arriving = min(arriving, (_all_blocks(engine) - used) * engine.block_size - 1)
            else:
                arriving = 0
            cells.append(Cell(kind, n_seqs, length, output_tokens, arriving))
    return cells


def _most_seqs(kind: Kind, length: int, engine: EngineInfo, max_prompt_tokens: float) -> int:
    """How many requests of ``length`` prompt tokens a cell may have; 0 if not even one fits."""
    places, blocks = engine.max_num_seqs, _all_blocks(engine)
    if kind == "mixed":  # one sequence arrives, the shortest at least
        places -= 1
        blocks -= _blocks(_SHORTEST_PROMPT + 1, engine)
    fitting = min(places, blocks // _blocks(length + _OUTPUT_TOKENS[kind], engine))
    affordable = max(1, int(max_prompt_tokens / length))
    return max(0, min(fitting, affordable))


def _all_blocks(engine: EngineInfo) -> int:
    return engine.num_kv_blocks - 1  # one block is vLLM's own placeholder


def _blocks(tokens: int, engine: EngineInfo) -> int:
    return -(-tokens // engine.block_size)


def _points(low: int, high: int) -> list[int]:
    """At most ``_POINTS`` whole numbers from ``low`` to ``high``, in equal ratios."""
    return sorted({round(x) for x in np.geomspace(low, high, _POINTS)})


def _up_to(index: int, points: Sequence[int], rng: np.random.Generator) -> int:
    """A number above the point before ``points[index]``, up to it."""
    low = points[index - 1] + 1 if index else points[index]
    return _log_uniform(low, points[index], rng)


def _log_uniform(low: int, high: int, rng: np.random.Generator) -> int:
    return round(np.exp(rng.uniform(np.log(low), np.log(high))))

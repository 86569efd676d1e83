"""Measuring how much the engines of one device slow each other down, by how many are busy.

Each round measures every engine alone, then two engines at once, three, and so on. A machine's pace
changes within minutes, so only what one round measured is compared; the curve is the median of
these ratios over the rounds. Which engines are busy together changes from round to round, so that
the factor for two of three is that of no particular two.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

import httpx2
import numpy as np
import openai
from pydantic import Field

from chimera_train.collect import provenance
from chimera_train.collect.alive import require_alive
from chimera_train.collect.request import Endpoint, open_endpoint
from chimera_train.collect.token_stream import stream_tokens
from chimera_train.config import Settings
from chimera_train.errors import ConfigError, EngineError
from chimera_train.files import write_json
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.pool.sharing import SHARING_SCHEMA, Sharing
from chimera_train.traces.schemas import SCHEMA_VERSION

__all__ = [
    "FILE_NAME", "Rounds", "SharingSettings", "collect_sharing", "decode_together",
    "measure_rounds",
]  # fmt: skip

FILE_NAME = "sharing.json"

# What is measured at once. More rounds of fewer tokens tell more than the reverse: a busy machine
# changes its pace for seconds at a time.
_TOKENS = 100
# What an engine decodes before it is measured, and after that until all others have been.
_FILL_TOKENS = 25
_PROMPT = range(10, 26)  # token ids that every vocabulary has


class SharingSettings(Settings):
    """How to measure.

    Attributes:
        rounds: how often everything is measured.
        n_seqs: sequences that each busy engine decodes at once.
    """

    rounds: int = Field(15, ge=3)
    n_seqs: int = Field(8, gt=0)


def collect_sharing(
    pool: Pool, group: str, out: Path, settings: SharingSettings, *, output: Output
) -> Sharing:
    """Start the engines of a device group together and measure the curve by which they share it.

    Writes ``sharing.json``, and ``provenance.json`` last. An engine is never taken to be faster in
    company than alone: a factor that comes out below 1 is written as 1, with its quartiles as
    measured.

    Raises:
        ConfigError: an unknown device group or one of a single engine, or a directory that holds a
            data set or cannot be written.
        EngineError: an engine did not start, died, or refused a request.
    """
    specs = _group(pool, group)
    provenance.require_new(out)
    with running_pool(
        pool, log_dir=out / "logs", output=output, only=[spec.name for spec in specs]
    ) as engines:
        run = provenance.describe_run(engines)
        rounds = measure_rounds(engines, settings, output=output)
    slowdowns = rounds.slowdowns.values()
    result = Sharing(
        schema_version=SHARING_SCHEMA,
        device_group=group,
        device=run["device"],
        engines={spec.name: spec.model for spec in specs},
        rounds=settings.rounds,
        n_seqs=settings.n_seqs,
        alone_ms_per_token={name: float(np.median(ms)) for name, ms in rounds.alone_ms.items()},
        slowdown=(1.0, *(max(1.0, float(np.median(by_round))) for by_round in slowdowns)),
        quartiles=[(1.0, 1.0), *map(_quartiles, slowdowns)],
    )
    write_json(out / FILE_NAME, result.model_dump())
    write_json(
        out / provenance.FILE_NAME,
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete",
            "settings": {"together": group, **settings.model_dump()},
            "counts": {"engines": len(specs), "rounds": settings.rounds},
            "runs": [run],
            "ended_at": provenance.now(),
        },
    )
    return result


@dataclass(frozen=True, slots=True)
class Rounds:
    """What was measured, one value a round.

    Attributes:
        alone_ms: time per token of each engine alone by its name, ms.
        slowdowns: by number of busy engines, from two on, how much slower than alone in the same
            round they were: the geometric mean over them, since how an operating system divides
            the cores favours now one engine and now another.
    """

    alone_ms: Mapping[str, list[float]]
    slowdowns: Mapping[int, list[float]]


def measure_rounds(
    engines: Sequence[RunningEngine], settings: SharingSettings, *, output: Output
) -> Rounds:
    """Measure every engine alone and then two, three, … of them busy, ``settings.rounds`` times.

    Raises:
        EngineError: an engine died or refused a request.
    """
    n = len(engines)
    rounds = Rounds({engine.spec.name: [] for engine in engines}, {k: [] for k in range(2, n + 1)})
    with output.progress() as progress:
        line = progress.add_task("together", total=settings.rounds * (2 * n - 1), note="")
        for number in range(settings.rounds):
            turns = [*engines[number % n :], *engines[: number % n]]
            for busy in [[engine] for engine in engines] + [turns[:k] for k in rounds.slowdowns]:
                progress.update(line, note=", ".join(engine.spec.name for engine in busy))
                times_ms = decode_together(busy, settings.n_seqs)
                if len(busy) == 1:
                    for name, ms in times_ms.items():
                        rounds.alone_ms[name].append(ms)
                else:
                    ratios = [ms / rounds.alone_ms[name][-1] for name, ms in times_ms.items()]
                    rounds.slowdowns[len(busy)].append(geometric_mean(ratios))
                progress.advance(line)
    return rounds


def decode_together(engines: Sequence[RunningEngine], n_seqs: int) -> dict[str, float]:
    """Time per token of each engine by name, ms, while every one of them decodes ``n_seqs``.

    Nobody is measured before all have begun or after one has stopped.

    Raises:
        EngineError: an engine died or refused a request.
    """
    try:
        times_ms = asyncio.run(_decode_together(engines, n_seqs))
    except EngineError:
        for engine in engines:  # the one that died says more in its log than in its refusal
            require_alive(engine)
        raise
    return dict(zip([engine.spec.name for engine in engines], times_ms, strict=True))


def _group(pool: Pool, group: str) -> list[EngineSpec]:
    specs = [spec for spec in pool.engines if spec.device_group == group]
    if not specs:
        known = sorted({spec.device_group for spec in pool.engines if spec.device_group})
        raise ConfigError(
            f"The pool has no device group '{group}': it has {', '.join(known) or 'none'}."
        )
    if len(specs) == 1:
        raise ConfigError(
            f"Device group '{group}' has one engine, '{specs[0].name}', which shares its device"
            " with no other: there is nothing to measure together."
        )
    return specs


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(values, [0.25, 0.75])
    return float(low), float(high)


async def _decode_together(engines: Sequence[RunningEngine], n_seqs: int) -> list[float]:
    unmeasured = len(engines)

    async def one(engine: RunningEngine) -> float:
        nonlocal unmeasured
        try:
            async with open_endpoint(
                engine.base_url, engine.served_model, api_key=engine.api_key
            ) as endpoint:
                await _decode(endpoint, n_seqs, _FILL_TOKENS)
                measured_ms = await _decode(endpoint, n_seqs, _TOKENS)
                unmeasured -= 1
                while unmeasured:
                    await _decode(endpoint, n_seqs, _FILL_TOKENS)
        except (openai.APIError, httpx2.TransportError) as error:
            raise EngineError(
                f"Engine '{engine.spec.name}' refused a request for {_TOKENS} tokens: {error}."
            ) from error
        return measured_ms

    return list(await asyncio.gather(*map(one, engines)))


async def _decode(endpoint: Endpoint, n_seqs: int, tokens: int) -> float:
    """Time per token in ms of ``n_seqs`` requests at once."""
    start = time.perf_counter()
    # Streamed and each by itself, as requests are that go through the gateway.
    requests = (stream_tokens(endpoint, [list(_PROMPT)], tokens, [[]]) for _ in range(n_seqs))
    await asyncio.gather(*requests)
    return (time.perf_counter() - start) * 1000 / tokens

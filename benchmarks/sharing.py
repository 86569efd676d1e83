"""How much engines that share a device slow each other down, by how many are busy.

    python benchmarks/sharing.py [--pool pipelines/demo/pool.yaml] [--json]

Starts every engine of the pool, then keeps the first one, the first two, ... busy with decoding and
compares the time per token with that of the same engine alone. The result goes into ``sharing`` of
a sweep file.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from chimera_train.collect.runner import Endpoint, open_endpoint
from chimera_train.output import Output, table
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import load_pool

CONCURRENCY = 8
TOKENS = 200
ROUNDS = 9


async def decode(endpoint: Endpoint) -> float:
    """Milliseconds per token of one engine with ``CONCURRENCY`` requests of ``TOKENS`` tokens."""
    start = time.perf_counter()
    await asyncio.gather(
        *(
            endpoint.client.completions.create(
                model=endpoint.model,
                prompt=[(7 * i + j) % 100 + 10 for j in range(16)],
                max_tokens=TOKENS,
                extra_body={"ignore_eos": True},
            )
            for i in range(CONCURRENCY)
        )
    )
    return (time.perf_counter() - start) * 1000 / TOKENS


async def together(engines: list[RunningEngine]) -> list[float]:
    """Milliseconds per token of each engine while all of them are busy."""

    async def one(engine: RunningEngine) -> float:
        async with open_endpoint(engine.base_url, engine.served_model) as endpoint:
            await decode(endpoint)  # warm-up, and until all have begun
            measured = await decode(endpoint)
            await decode(endpoint)  # nobody is measured beside an engine that has finished
            return measured

    return list(await asyncio.gather(*map(one, engines)))


def measure(pool: Path, output: Output) -> dict[str, Any]:
    """The slow-down by number of busy engines, the median over rounds, relative to one alone."""
    with (
        tempfile.TemporaryDirectory() as logs,
        running_pool(load_pool(pool), log_dir=Path(logs), output=output) as engines,
    ):
        ratios: dict[int, list[float]] = {busy: [] for busy in range(2, len(engines) + 1)}
        alone: dict[str, list[float]] = {engine.spec.name: [] for engine in engines}
        # A machine's pace changes within minutes: only what one round measured is compared.
        for _ in range(ROUNDS):
            for engine in engines:
                alone[engine.spec.name] += asyncio.run(together([engine]))
            for busy, of_busy in ratios.items():
                times = asyncio.run(together(engines[:busy]))
                of_busy += [
                    ms / alone[engine.spec.name][-1]
                    for engine, ms in zip(engines, times, strict=False)
                ]
    return {
        "alone_ms_per_token": {name: round(median(times), 2) for name, times in alone.items()},
        "slowdown": [1.0, *(round(median(of_busy), 2) for of_busy in ratios.values())],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pool", type=Path, default=Path("pipelines/demo/pool.yaml"))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    result = measure(arguments.pool, output)
    output.result(
        result,
        table(
            ["busy engines", "slow-down"],
            [[i, factor] for i, factor in enumerate(result["slowdown"], 1)],
        ),
    )


if __name__ == "__main__":
    main()

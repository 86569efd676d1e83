"""What the collector costs an engine under load: its throughput against that of a bare client.

    python benchmarks/collect_load.py [--json] [--requests N] [--concurrency N] [--tokens N]
                                      [--pace-ms MS] [--rounds N]

A stub engine, a process of its own, streams tokens at a fixed pace, so that whatever a client does
between two requests, or too late, is throughput that is lost. The bare client reads the bytes and
nothing else; the collector runs ``direct`` on the arithmetic task, counts the tokens of prompts,
grades and stores every program. Rounds alternate between the two, so that both see the same
machine; the first of each only warms up.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from stub_engine import MODEL, process, serve_engine

from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.traces import collect_traces
from chimera_train.output import Output
from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.tasks import get_task
from chimera_train.workflows.model import load_workflow

TEXT = "A shop has twelve boxes with nine pens each and sells forty of them. How many are left?"
# Its tokenizer counts the tokens of prompts.
TOKENIZER_OF = "package:pocket-qwen"


def main() -> None:
    arguments = _arguments()
    figures = measure(arguments)
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name in ("bare", "collector"):
        way = figures[name]
        print(
            f"{name}: {way['tokens_per_s']:.0f} tokens/s,"
            f" {way['cpu_ms_per_request']:.2f} ms of processor time a request"
        )
    print(f"the engine could: {figures['offered_tokens_per_s']:.0f} tokens/s")
    print(f"overhead of the collector: {figures['overhead_percent']:.2f} %")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark; medians over rounds."""
    ways = {"bare": _bare, "collector": _collector}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with process(serve_engine, arguments.tokens, arguments.pace_ms / 1000) as engine:
        url = engine.recv()
        for number in range(1 + arguments.rounds):
            for name, way in ways.items():
                measured = _timed(way, url, arguments)
                if number:
                    seen[name].append(measured)
        engine.send("stop")
    figures = {
        name: {
            "tokens_per_s": statistics.median(rate for rate, _ in rounds),
            "cpu_ms_per_request": statistics.median(cpu for _, cpu in rounds),
        }
        for name, rounds in seen.items()
    }
    ratios = [one[0] / bare[0] for one, bare in zip(seen["collector"], seen["bare"], strict=True)]
    return {
        **figures,
        "overhead_percent": 100 * (1 - statistics.median(ratios)),
        "overhead_percent_of_rounds": [100 * (1 - ratio) for ratio in ratios],
        "offered_tokens_per_s": arguments.concurrency * 1000 / arguments.pace_ms,
        "concurrency": arguments.concurrency,
        "requests": arguments.requests,
        "tokens": arguments.tokens,
        "pace_ms": arguments.pace_ms,
    }


def _timed(
    way: Callable[[str, argparse.Namespace], float], url: str, arguments: argparse.Namespace
) -> tuple[float, float]:
    """Tokens per second, and this process's processor time in ms a request."""
    cpu_s = time.process_time()
    tokens_per_s = way(url, arguments)
    return tokens_per_s, 1000 * (time.process_time() - cpu_s) / arguments.requests


def _bare(url: str, arguments: argparse.Namespace) -> float:
    start = time.perf_counter()
    asyncio.run(_load(url, arguments))
    return arguments.requests * arguments.tokens / (time.perf_counter() - start)


async def _load(url: str, arguments: argparse.Namespace) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TEXT}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    remaining = iter(range(arguments.requests))

    async def client(http: httpx2.AsyncClient) -> None:
        for _ in remaining:
            async with http.stream("POST", f"{url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_raw():
                    pass

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        timeout=600, trust_env=False, verify=False, limits=limits
    ) as http:
        await asyncio.gather(*(client(http) for _ in range(arguments.concurrency)))


def _collector(url: str, arguments: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory(prefix="collect-load-") as directory:
        result = collect_traces(
            Pool(engines=[EngineSpec(name="stub", model=TOKENIZER_OF, base_url=url)]),
            get_task("arithmetic"),
            load_workflow("direct"),
            Path(directory) / "out",
            CollectSettings(limit=arguments.requests, concurrency=arguments.concurrency),
            output=Output(quiet=True),
        )
    if result.failed or result.tokens_per_s is None:
        raise RuntimeError(f"{result.failed} programs failed")
    return result.tokens_per_s


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=1024, help="requests a round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pace-ms", type=float, default=100.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""What the gateway adds to a request, against asking the same engine directly, in one run.

    python benchmarks/gateway_load.py [--json] [--requests N] [--concurrency N] [--tokens N]
                                      [--pace-ms MS] [--rounds N]

A stub engine streams tokens at a fixed pace; the gateway in front of it decides with the Chimera
policy and stub predictors, so what is measured is the gateway itself: reading, batching to the
prediction thread, scheduling, relaying and reassembling. Engine, gateway and load generator are
processes of their own. Rounds alternate between the two ways, so that both see the same machine.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from stub_engine import MODEL, process, serve, serve_engine

from chimera_train.predict.router_text import Reads
from chimera_train.runtime.access import ApiKeys
from chimera_train.runtime.app import create_app
from chimera_train.runtime.engines import Endpoint
from chimera_train.runtime.gateway import Gateway
from chimera_train.runtime.predictions import Predictors
from chimera_train.runtime.settings import GatewaySettings
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import Chimera
from chimera_train.scheduling.scheduler import Scheduler

TEXT = "A shop has twelve boxes with nine pens each and sells forty of them. How many are left?"


def main() -> None:
    arguments = _arguments()
    figures = measure(arguments)
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name in ("ttft_ms", "e2e_ms"):
        for quantile in ("p50", "p99"):
            print(
                f"{name} {quantile}: direct {figures['direct'][name][quantile]:.2f},"
                f" gateway {figures['gateway'][name][quantile]:.2f}"
            )
    overhead = figures["overhead_ms"]
    print(f"scheduling overhead: p50 {overhead['p50']:.2f} ms, p99 {overhead['p99']:.2f} ms")
    print(f"gateway processor time: {figures['gateway_cpu_ms_per_request']:.2f} ms a request")
    print(f"gateway memory: {figures['gateway_rss_mib']:.0f} MiB")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark; latencies in ms, memory in MiB."""
    with process(serve_engine, arguments.tokens, arguments.pace_ms / 1000) as engine:
        engine_url = engine.recv()
        window = arguments.concurrency
        with process(_serve_gateway, engine_url, window) as gateway:
            urls = {"direct": engine_url, "gateway": gateway.recv()}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
            for count in range(1 + arguments.rounds):
                for name, url in urls.items():
                    measured = asyncio.run(load(url, arguments))
                    if count:  # the first round only warms up
                        times[name] += measured
            gateway.send("stop")
            overhead, cpu_s, rss_mib = gateway.recv()
        engine.send("stop")
    result: dict[str, Any] = {
        name: {
            "ttft_ms": quantiles([ttft for ttft, _ in pairs]),
            "e2e_ms": quantiles([e2e for _, e2e in pairs]),
        }
        for name, pairs in times.items()
    }
    return {
        **result,
        "requests": arguments.rounds * arguments.requests,
        "concurrency": arguments.concurrency,
        "tokens": arguments.tokens,
        "pace_ms": arguments.pace_ms,
        "added_ttft_ms": _difference(result, "ttft_ms"),
        "added_e2e_ms": _difference(result, "e2e_ms"),
        "e2e_ratio": {
            q: result["gateway"]["e2e_ms"][q] / result["direct"]["e2e_ms"][q]
            for q in ("p50", "p99")
        },
        "overhead_ms": quantiles(overhead),
        "gateway_cpu_ms_per_request": cpu_s * 1000 / len(overhead),
        "gateway_rss_mib": rss_mib,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=200, help="requests a round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    return parser.parse_args()


async def load(url: str, arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """TTFT and E2E in ms of streamed requests from ``concurrency`` clients in a closed loop."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": TEXT}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    remaining = iter(range(arguments.requests))
    times: list[tuple[float, float]] = []

    async def client(http: httpx2.AsyncClient) -> None:
        for _ in remaining:
            start = time.perf_counter()
            first = None
            async with http.stream("POST", f"{url}/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_raw():
                    first = first or time.perf_counter()
            if first is None:
                raise RuntimeError("an empty response")
            times.append(((first - start) * 1000, (time.perf_counter() - start) * 1000))

    async with httpx2.AsyncClient(timeout=120, trust_env=False, verify=False) as http:
        await asyncio.gather(*(client(http) for _ in range(arguments.concurrency)))
    return times


class _Router:
    models = (MODEL,)
    reads: Reads = "user"

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        return np.full((len(texts), 1), 0.5)


class _Length:
    def template_overhead_tokens(self, _: str) -> int:
        return 4

    def predict_with_interval(self, _: str, requests: Sequence[Any]) -> tuple[np.ndarray, ...]:
        n = len(requests)
        return np.full(n, 30.0), np.full(n, 30.0), np.full((n, 2), 30.0)


class _Words:
    def count(self, text: str) -> int:
        return len(text.split())


class _Overheads:
    """Stands in for the decision log and keeps one column of it."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._cpu_s = 0.0

    def add(self, row: dict[str, Any]) -> None:
        if not self.ms:  # starting up is not counted
            self._cpu_s = time.process_time()
        self.ms.append(row["overhead_ms"])

    def cpu_s(self) -> float:
        """Processor time of the gateway's process since the first request."""
        return time.process_time() - self._cpu_s


def _serve_gateway(pipe: Connection, engine_url: str, window: int) -> None:
    log = _Overheads()
    gateway = Gateway(
        MODEL,
        [Endpoint("stub", engine_url, MODEL, takes_priority=True)],
        Scheduler([EngineProfile("stub", MODEL, 10.0, window)], Chimera()),
        Predictors([MODEL], _Router(), _Length(), {MODEL: _Words()}),
        GatewaySettings(),
        log,  # type: ignore[arg-type]
        lambda: time.monotonic() * 1000,
    )
    serve(create_app(gateway, ApiKeys()), pipe)
    status = Path("/proc/self/status").read_text()
    rss_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    pipe.send((log.ms, log.cpu_s(), int(rss_kib) / 1024))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, (50, 99))
    return {"p50": float(p50), "p99": float(p99)}


def _difference(result: dict[str, Any], name: str) -> dict[str, float]:
    return {q: result["gateway"][name][q] - result["direct"][name][q] for q in ("p50", "p99")}


if __name__ == "__main__":
    main()

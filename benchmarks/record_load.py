"""What the recording proxy adds to a request, against asking the same engine directly, in one run.

    python benchmarks/record_load.py [--json] [--requests N] [--concurrency N] [--tokens N]
                                     [--pace-ms MS] [--rounds N] [--out DIR]

As gateway_load.py: a stub engine streams tokens at a fixed pace, and engine, proxy and load
generator are processes of their own. Every finished request is on the disk of DIR (a temporary
directory by default) before its answer ends. Rounds alternate between the two ways.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gateway_load import load, quantiles
from stub_engine import MODEL, process, serve, serve_engine

from chimera_train.collect.journal import open_journal
from chimera_train.collect.privacy import Privacy
from chimera_train.collect.record.app import create_app
from chimera_train.collect.record.pieces import brief, key
from chimera_train.collect.record.recorder import RecordedEngine, Recorder, wall_clock
from chimera_train.collect.record.settings import RecordSettings


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="record-load-", dir=arguments.out) as directory:
        figures = measure(arguments, Path(directory))
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name in ("ttft_ms", "e2e_ms"):
        for quantile in ("p50", "p99"):
            direct, through = (figures[way][name][quantile] for way in ("direct", "recorded"))
            print(f"{name} {quantile}: direct {direct:.2f}, recorded {through:.2f}")
    print(f"processor time of the proxy: {figures['cpu_ms_per_request']:.2f} ms a request")


def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Run the benchmark; times in ms."""
    with process(serve_engine, arguments.tokens, arguments.pace_ms / 1000) as engine:
        engine_url = engine.recv()
        with process(_serve_recorder, engine_url, directory) as recorder:
            urls = {"direct": engine_url, "recorded": recorder.recv()}
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
            for number in range(1 + arguments.rounds):
                for name, url in urls.items():
                    measured = asyncio.run(load(url, arguments))
                    if number:  # the first round only warms up
                        times[name] += measured
            recorder.send("stop")
            stored, cpu_s = recorder.recv()
        engine.send("stop")
    if stored != (1 + arguments.rounds) * arguments.requests:
        raise SystemExit(f"{stored} requests were stored")
    figures: dict[str, Any] = {
        name: {
            "ttft_ms": quantiles([ttft for ttft, _ in pairs]),
            "e2e_ms": quantiles([e2e for _, e2e in pairs]),
        }
        for name, pairs in times.items()
    }
    added = {
        f"added_{what}": {
            q: figures["recorded"][what][q] - figures["direct"][what][q] for q in ("p50", "p99")
        }
        for what in ("ttft_ms", "e2e_ms")
    }
    return {
        **figures,
        **added,
        "cpu_ms_per_request": cpu_s * 1000 / stored,
        "requests": arguments.rounds * arguments.requests,
        "concurrency": arguments.concurrency,
        "tokens": arguments.tokens,
        "pace_ms": arguments.pace_ms,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=200, help="requests a round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--out", help="on which disk to record")
    return parser.parse_args()


def _serve_recorder(pipe: Connection, engine_url: str, directory: Path) -> None:
    with open_journal(directory, {"command": "collect record"}, key, brief) as journal:
        engine = RecordedEngine("stub", MODEL, engine_url, MODEL)
        recorder = Recorder([engine], journal, {}, RecordSettings(), Privacy(), wall_clock())
        cpu_s = time.process_time()
        serve(create_app(recorder), pipe)
        pipe.send((len(journal.entries), time.process_time() - cpu_s))


if __name__ == "__main__":
    main()

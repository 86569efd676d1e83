"""Whether a pocket engine on this CPU can be predicted: profile it, calibrate, replay new requests.

The steps of one engine are profiled and fitted; the engine is started again without the tracer and
served Poisson arrivals of random prompts, whose times are then predicted. Run it on an idle
machine: client and engine share the cores.

    python benchmarks/pocket_replay.py --json
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from chimera_train.collect.request import open_endpoint
from chimera_train.collect.steps import StepsSettings, collect_steps
from chimera_train.collect.token_stream import stream_tokens
from chimera_train.files import write_json
from chimera_train.latency.calibrate import calibrate, read_engine
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import load_pool
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.simulate.replay import fit_overhead, judge, read_requests, replay

POOL = Path(__file__).parents[1] / "pipelines/demo/pool.yaml"
ENGINE = "llama"
# Ids that every pocket model has.
VOCABULARY = 30


async def serve(engine: RunningEngine, n: int, rate_per_s: float) -> list[dict[str, Any]]:
    """What ``n`` requests met, in the format of ``simulate replay``."""
    rng = np.random.default_rng(0)
    arrivals_s = np.cumsum(rng.exponential(1 / rate_per_s, n))
    prompts = [rng.integers(VOCABULARY, size=size).tolist() for size in rng.integers(20, 150, n)]
    outputs = rng.integers(5, 60, n).tolist()
    async with open_endpoint(engine.base_url, engine.served_model) as endpoint:
        await stream_tokens(endpoint, [prompts[0]], outputs[0], [[]])  # warm
        begin_s = time.perf_counter()

        async def request(i: int) -> dict[str, Any]:
            await asyncio.sleep(begin_s + arrivals_s[i] - time.perf_counter())
            tokens_s: list[float] = []
            sent_s = await stream_tokens(endpoint, [prompts[i]], outputs[i], [tokens_s])
            return {
                "arrival_ms": 1000 * (sent_s - begin_s),
                "prompt_tokens": len(prompts[i]),
                "output_tokens": outputs[i],
                "ttft_ms": 1000 * (tokens_s[0] - sent_s),
                "tpot_ms": 1000 * (tokens_s[-1] - tokens_s[0]) / (outputs[i] - 1),
                "e2e_ms": 1000 * (tokens_s[-1] - sent_s),
            }

        return await asyncio.gather(*(request(i) for i in range(n)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of profiling")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rate-per-s", type=float, default=8.0)
    arguments = parser.parse_args()

    pool, output = load_pool(POOL), Output(quiet=True)
    with tempfile.TemporaryDirectory() as directory:
        steps, latency = Path(directory) / "steps", Path(directory) / "latency.json"
        settings = StepsSettings(budget_s=arguments.budget_s)
        collect_steps(pool, ENGINE, steps, settings, output=output)
        document = calibrate(
            read_steps(steps), kind=None, engine=read_engine(steps / "engine.json")
        ).document
        write_json(latency, dict(document))
        with running_pool(pool, log_dir=Path(directory), output=output, only=[ENGINE]) as (engine,):
            served = asyncio.run(serve(engine, arguments.requests, arguments.rate_per_s))
        log = Path(directory) / "requests.jsonl"
        log.write_text("".join(json.dumps(request) + "\n" for request in served))
        model, requests = StepTimeModel.load(latency), read_requests(log)
    first = len(requests) // 3
    overhead_ms = fit_overhead(model, requests, first)
    values = {
        "kind": document["kind"],
        "mape": document["mape"],
        "repeatability": document["repeatability"],
        "replay": judge(replay(model, requests).predicted, requests),
        "overhead_ms": overhead_ms,
        "replay_with_overhead": judge(
            replay(model, requests, overhead_ms=overhead_ms).predicted[first:], requests[first:]
        ),
    }
    if arguments.json:
        print(json.dumps(values))
        return
    print(f"{values['kind']}: held-out MAPE {values['mape']}")
    print(f"the same batch again: {values['repeatability']}")
    for name in ("replay", "replay_with_overhead"):
        for what in ("ttft", "tpot", "e2e"):
            figures = values[name][what]
            print(
                f"{name} {what}: MAPE {figures['mape']:.1f} %, bias {figures['bias_mean']:+.1f} %"
            )
    print(f"fitted overhead: {overhead_ms:.2f} ms a step")


if __name__ == "__main__":
    main()

"""How long one TTFT estimate takes, and how much longer in plain Python.

Engines with a budget of 2,048 tokens hold 64, 256 and 512 requests, a quarter of them waiting; the
prompts have a few hundred tokens, the step times are those published for Qwen3-8B on an H100 (SFS).
In the scenario ``room`` everything may run, in ``seats`` all places are taken, and in ``memory``
few KV blocks are free, so that the running requests preempt each other. Compilation is not timed,
and times are the thread's own, so that other programs on the machine do not count.

    python benchmarks/ttft_speed.py --json
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from published import qwen3_8b

from chimera_train.predict.engine_state import Resident, engine_with
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.predict.ttft import TtftEstimator

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "oracles"))
from plain_engine import Call, PlainEngine, plain_estimate

RESIDENTS = (64, 256, 512)
STATES = 20
FREE_BLOCKS = {"room": 100_000, "seats": 100_000, "memory": 200}
NEW_PROMPT, NEW_OUTPUT = 400, 200
BLOCK_SIZE = 16


def engine_of(scenario: str, n: int, seed: int) -> tuple[StepTimeModel, PlainEngine]:
    """An engine whose running requests are anywhere in their output, a tenth still in the prompt.

    The predicted output of every request is its real one.
    """
    rng = np.random.default_rng(seed)
    prompts = np.clip(rng.lognormal(5.7, 0.5, n), 16, 2000).astype(int).tolist()
    outputs = np.clip(rng.lognormal(5.2, 0.6, n), 2, 2000).astype(int).tolist()
    n_running = n - n // 4
    running, waiting = [], []
    for number in range(n):
        call = Call(number, prompts[number], outputs[number], priority=int(rng.integers(3)))
        if number >= n_running:
            waiting.append(call)
            continue
        if rng.random() < 0.1:
            call.computed = int(rng.integers(call.prompt))
        else:
            call.generated = int(rng.integers(1, call.output))
            call.computed = call.tokens - 1
        call.blocks = -(-call.computed // BLOCK_SIZE)
        running.append(call)
    free = FREE_BLOCKS[scenario]
    model = qwen3_8b(
        max_num_seqs=n_running if scenario == "seats" else 1024,
        max_num_batched_tokens=2048,
        max_model_len=8192,
        num_kv_blocks=1 + free + sum(call.blocks for call in running),
        max_batch_size=256,
    )
    info = model.engine
    plain = PlainEngine(
        info.max_num_seqs, info.max_num_batched_tokens, BLOCK_SIZE, free, True, running, waiting
    )
    return model, plain


def residents(calls: list[Call]) -> list[Resident]:
    return [
        Resident(
            arrival=call.number,
            prompt_tokens=call.prompt,
            output_tokens=call.output,
            priority=call.priority,
            computed_tokens=call.computed,
            generated_tokens=call.generated,
        )
        for call in calls
    ]


def measure(scenario: str, n: int, rounds: int) -> dict[str, Any]:
    """Figures of ``rounds`` calls on each of ``STATES`` states, and of a few in plain Python."""
    calls_us: dict[bool, list[float]] = {False: [], True: []}
    plain_us: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(STATES):
        model, plain = engine_of(scenario, n, seed)
        estimator = TtftEstimator(model)
        state = engine_with(model.engine, residents(plain.running), residents(plain.waiting))
        for completion in (False, True):
            for _ in range(rounds):
                start = time.thread_time()
                estimate = estimator.estimate(
                    state, NEW_PROMPT, 0, NEW_OUTPUT, 1, busy_ms=5.0, completion=completion
                )
                calls_us[completion].append(1e6 * (time.thread_time() - start))
            if seed >= 3:  # the plain engine is slow, and three states tell
                continue
            engine = copy.deepcopy(plain)
            new = Call(n, NEW_PROMPT, NEW_OUTPUT, 1)
            start = time.thread_time()
            expected = plain_estimate(engine, new, model.step_ms, 5.0, completion=completion)
            plain_us[completion].append(1e6 * (time.thread_time() - start))
            if not np.allclose(estimate, expected, rtol=1e-12, equal_nan=True):
                raise SystemExit(f"{scenario}, {n}: {estimate} differs from {expected}")
    values = {}
    for completion, name in ((False, "first_token"), (True, "completion")):
        p50, p99 = np.percentile(calls_us[completion], [50, 99])
        values[name] = {
            "p50_us": round(p50, 1),
            "p99_us": round(p99, 1),
            "plain_python_ratio": round(float(np.median(plain_us[completion])) / p50),
        }
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=50, help="calls on each state")
    arguments = parser.parse_args()

    start = time.perf_counter()
    TtftEstimator(engine_of("room", 4, 0)[0]).warm_up()
    warm_up_s = time.perf_counter() - start
    values = {
        scenario: {str(n): measure(scenario, n, arguments.rounds) for n in RESIDENTS}
        for scenario in FREE_BLOCKS
    }
    if arguments.json:
        print(json.dumps({"warm_up_s": round(warm_up_s, 2), **values}))
        return
    print(f"warm-up {warm_up_s:.2f} s")
    for scenario, by_number in values.items():
        for n, value in by_number.items():
            for name, figures in value.items():
                print(
                    f"{scenario:7}{n:>5} {name:12}"
                    f"{figures['p50_us']:9} µs p50 {figures['p99_us']:9} µs p99"
                    f"{figures['plain_python_ratio']:7} × in plain Python"
                )


if __name__ == "__main__":
    main()

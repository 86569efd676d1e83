"""How fast the simulator is, and what it takes for a million requests, in one process.

16,000 requests of lognormal lengths arrive at four engines with the step times published for
Qwen3-8B on an H100 (SFS), as a Poisson process at several shares of what the pool could decode in
batches of 256. The main case is shortest queue at half of it; Chimera is given its predictions.
Then more and more requests of the same kind: their cost should not rise. Compilation is not timed.

    python benchmarks/sim_speed.py --json
"""

import argparse
import json
import resource
import sys
import time
from typing import Any

import numpy as np
from published import qwen3_8b

from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.scheduling.policy import Chimera, PolicySettings, ShortestQueue
from chimera_train.simulate.arrivals import poisson
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.workload import Workload

ENGINES = [f"e{i}" for i in range(4)]
BATCH = 256
MAIN = "shortest_queue", 0.5
CASES = [
    (ShortestQueue(), 0.1),
    (ShortestQueue(), 0.3),
    (ShortestQueue(), 0.5),
    (ShortestQueue(), 0.8),
    (Chimera(), 0.8),
]


def workload(n: int) -> Workload:
    """``n`` questions, which every engine's model answers at a length of its own."""
    rng = np.random.default_rng(0)
    k = len(ENGINES)
    output_tokens = np.clip(rng.lognormal(5.2, 0.8, n * k), 1, 4000).astype(np.int64)
    return Workload(
        questions=[str(i) for i in range(n)],
        models=ENGINES,
        program_ids=[str(i) for i in range(n * k)],
        first_trajectory=np.arange(n * k).reshape(n, k),
        n_samples=np.ones((n, k), dtype=np.int64),
        confidence=rng.random((n, k)),
        first_stage=np.arange(n * k + 1),
        score=np.ones(n * k),
        prompt_tokens=np.clip(rng.lognormal(6.0, 0.8, n * k), 8, 8000).astype(np.int64),
        output_tokens=output_tokens,
        remaining_tokens=output_tokens * rng.lognormal(0.0, 0.3, n * k),
        stops=np.ones(n * k, dtype=np.bool_),
        tool_ms=np.zeros(n * k),
    )


def measure(
    model: StepTimeModel,
    of: Workload,
    policy: PolicySettings,
    load: float,
    n: int,
    repeats: int = 1,
) -> dict[str, Any]:
    """The fastest of ``repeats`` runs of ``n`` requests, also by CPU time, for busy machines."""
    pool = Pool(
        engines=[
            EngineSpec(name=name, model=name, base_url="http://127.0.0.1:8000/v1")
            for name in ENGINES
        ]
    )
    tokens_per_s = len(ENGINES) * 1000 * BATCH / model.decode_ms_per_token
    arrivals = poisson(
        of, rate_per_s=load * tokens_per_s / of.output_tokens.mean(), programs=n, seed=0
    )
    wall_s = cpu_s = np.inf
    for _ in range(repeats):
        start, cpu_start = time.perf_counter(), time.process_time()
        result = simulate_once(pool, dict.fromkeys(ENGINES, model), of, policy, arrivals)
        wall_s = min(wall_s, time.perf_counter() - start)
        cpu_s = min(cpu_s, time.process_time() - cpu_start)
    steps = sum(result.steps.values())
    return {
        "policy": policy.kind,
        "load": load,
        "requests": n,
        "wall_s": round(wall_s, 3),
        "steps": steps,
        "tokens_per_step": round(float(result.requests["output_tokens"].sum()) / steps, 1),
        "requests_per_s": round(n / wall_s),
        "steps_per_s": round(steps / wall_s),
        "cpu_us_per_request": round(1e6 * cpu_s / n, 2),
    }


def peak_rss_mb() -> float:
    """Most memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=16_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5, help="the fastest of these counts")
    arguments = parser.parse_args()

    model = qwen3_8b(
        max_num_seqs=512,
        max_num_batched_tokens=32768,
        max_model_len=32768,
        num_kv_blocks=20_000,
        max_batch_size=BATCH,
    )
    requests = workload(16_000)
    for policy, load in CASES:
        measure(model, requests, policy, load, 10)  # compiles
    cases = [
        measure(model, requests, policy, load, arguments.requests, arguments.repeats)
        for policy, load in CASES
    ]
    before_mb = peak_rss_mb()
    sizes = [
        measure(
            model, requests, ShortestQueue(), MAIN[1], n, arguments.repeats if n <= 100_000 else 1
        )
        for n in sorted(arguments.sizes)
    ]
    main_case = next(case for case in cases if (case["policy"], case["load"]) == MAIN)
    values = {
        "requests_per_s": main_case["requests_per_s"],
        "steps_per_s": main_case["steps_per_s"],
        "engines": len(ENGINES),
        "cases": cases,
        "sizes": sizes,
        "peak_rss_mb": {"before_sizes": before_mb, "after_sizes": peak_rss_mb()},
    }
    if arguments.json:
        print(json.dumps(values))
        return
    for table in (cases, sizes):
        print("  ".join(f"{name:>15}" for name in cases[0]))
        for case in table:
            print("  ".join(f"{value:>15}" for value in case.values()))
    print("peak RSS, MB:", values["peak_rss_mb"])


if __name__ == "__main__":
    main()

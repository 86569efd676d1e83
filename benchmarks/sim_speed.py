"""How fast the simulator is: 16,000 requests on four engines under shortest queue.

The engines have the step times published for Qwen3-8B on an H100 (SFS), the requests lognormal
lengths and Poisson arrivals at half of what the pool could decode. Compilation is not timed.

    python benchmarks/sim_speed.py --json
"""

import argparse
import json
import time

import numpy as np
from published import qwen3_8b

from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.scheduling.policy import ShortestQueue
from chimera_train.simulate.arrivals import poisson
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.workload import Workload

N_ENGINES = 4
BATCH = 256


def workload(n: int) -> Workload:
    rng = np.random.default_rng(0)
    return Workload(
        questions=[str(i) for i in range(n)],
        models=["qwen3-8b"],
        program_ids=[str(i) for i in range(n)],
        first_trajectory=np.arange(n).reshape(n, 1),
        n_samples=np.ones((n, 1), dtype=np.int64),
        confidence=np.zeros((n, 1)),
        first_stage=np.arange(n + 1),
        score=np.ones(n),
        prompt_tokens=np.clip(rng.lognormal(6.0, 0.8, n), 8, 8000).astype(np.int64),
        output_tokens=np.clip(rng.lognormal(5.2, 0.8, n), 1, 4000).astype(np.int64),
        remaining_tokens=np.zeros(n),
        stops=np.ones(n, dtype=np.bool_),
        tool_ms=np.zeros(n),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=16_000)
    arguments = parser.parse_args()

    model = qwen3_8b(
        max_num_seqs=512,
        max_num_batched_tokens=32768,
        max_model_len=32768,
        num_kv_blocks=20_000,
        max_batch_size=BATCH,
    )
    pool = Pool(
        engines=[
            EngineSpec(name=f"e{i}", model="qwen3-8b", base_url="http://127.0.0.1:8000/v1")
            for i in range(N_ENGINES)
        ]
    )
    models = {spec.name: model for spec in pool.engines}
    requests = workload(arguments.requests)
    tokens_per_s = N_ENGINES * 1000 * BATCH / model.decode_ms_per_token
    rate_per_s = 0.5 * tokens_per_s / requests.output_tokens.mean()

    def simulate(n: int) -> tuple[float, int]:
        arrivals = poisson(requests, rate_per_s=rate_per_s, programs=n, seed=0)
        start = time.perf_counter()
        result = simulate_once(pool, models, requests, ShortestQueue(), arrivals)
        return time.perf_counter() - start, sum(result.steps.values())

    simulate(10)  # compiles
    wall_s, steps = simulate(arguments.requests)
    values = {
        "requests": arguments.requests,
        "engines": N_ENGINES,
        "wall_s": round(wall_s, 3),
        "steps": steps,
        "requests_per_s": round(arguments.requests / wall_s),
        "steps_per_s": round(steps / wall_s),
    }
    if arguments.json:
        print(json.dumps(values))
    else:
        for name, value in values.items():
            print(f"{name:16} {value}")


if __name__ == "__main__":
    main()

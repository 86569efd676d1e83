"""How well the average case (SFS) predicts the mean TTFT of simulated vLLM engines by arrival rate.

The engines have the step times published for Qwen3-8B on an H100 (SFS) and differ in how many
sequences they decode at once. Poisson arrivals at seven rates from 20 to 93 % of the rate at which
each completes a flood of requests, about 200 prompt and 100 output tokens each.

    python benchmarks/average_case.py --json
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from published import qwen3_8b

from chimera_train.latency.average_case import fit_average_case, observed_loads
from chimera_train.simulate.replay import replay

SEQUENCES = (16, 64, 256)
LOADS = (0.2, 0.4, 0.55, 0.7, 0.8, 0.87, 0.93)


def measure(max_num_seqs: int, requests: int, seed: int) -> dict[str, Any]:
    """Held-out errors in %; ``beyond`` is that of the highest rate by a fit on the lower ones."""
    model = qwen3_8b(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=8192,
        max_model_len=8192,
        num_kv_blocks=100_000,
        max_batch_size=max_num_seqs,
    )
    rng = np.random.default_rng(seed)

    def observe(rate_per_s: float) -> pd.DataFrame:
        frame = pd.DataFrame(
            {
                "arrival_ms": np.cumsum(rng.exponential(1000 / rate_per_s, requests)),
                "prompt_tokens": rng.poisson(200, requests) + 1,
                "output_tokens": rng.geometric(0.01, requests),
            }
        )
        return replay(model, frame).predicted

    flood = observe(1e5)
    capacity_per_s = 1000 * requests / (flood["arrival_ms"] + flood["e2e_ms"]).max()
    loads = observed_loads([observe(capacity_per_s * load) for load in LOADS], None)
    fitted = fit_average_case(loads, [Path("simulated")])
    highest = loads[-1]
    below = fit_average_case(loads[:-1], [Path("simulated")])
    beyond_ms = below.ttft_ms(highest.rate_per_s)
    return {
        "capacity_per_s": capacity_per_s,
        "mu_per_s": fitted.mu_per_s,
        "k": fitted.k,
        "ttft_ms": [load.ttft_ms for load in loads],
        "mape": fitted.mape,
        "beyond": 100 * (beyond_ms / highest.ttft_ms - 1) if np.isfinite(beyond_ms) else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--requests", type=int, default=5000, help="at each rate")
    arguments = parser.parse_args()

    values = {str(n): measure(n, arguments.requests, seed=n) for n in SEQUENCES}
    if arguments.json:
        print(json.dumps(values))
        return
    for n, value in values.items():
        mape = ", ".join(f"{name} {error:.1f}" for name, error in value["mape"].items())
        beyond = "saturated" if value["beyond"] is None else f"{value['beyond']:+.0f} %"
        print(
            f"{n:>4} sequences: mean TTFT {value['ttft_ms'][0]:.1f} to {value['ttft_ms'][-1]:.1f}"
            f" ms; held-out MAPE in %: {mape}; the highest rate by the others: {beyond};"
            f" mu {value['mu_per_s']:.1f} of {value['capacity_per_s']:.1f}/s, k {value['k']}"
        )


if __name__ == "__main__":
    main()

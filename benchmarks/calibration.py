"""How well each kind of step-time model predicts an RTX 4090 on batch shapes it has not seen.

    python benchmarks/calibration.py [--data DIR] [--json]

DIR holds the public data (``latency/llmservingsim``); by default CHIMERA_SHARED_DATA or
``../shared/data`` beside the repository.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from chimera_train.latency.fit import REGIMES, cross_validate, errors
from chimera_train.latency.steps import read_steps
from chimera_train.predict.step_time import KINDS

STEPS = "latency/llmservingsim/steps_rtx4090_llama31_8b.csv.gz"


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("CHIMERA_SHARED_DATA", beside))
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    results = []
    for max_context in (4096, None):
        frame = read_steps(arguments.data / STEPS, max_context=max_context).frame
        for kind in KINDS:
            judged = errors(cross_validate(kind, frame), frame)
            results.append(
                {"model": kind, "max_context": max_context, "steps": len(frame)} | judged
            )
    if arguments.json:
        print(json.dumps({"results": results}))
        return
    names = ("overall", *REGIMES)
    print(f"{'model':8} {'context':>8} {'steps':>6}", *(f"{name:>12}" for name in names), "   bias")
    for result in results:
        print(
            f"{result['model']:8} {result['max_context'] or 'any':>8} {result['steps']:6}",
            *(f"{result['mape'][name]:12.2f}" for name in names),
            f"{result['bias']:+7.2f}",
        )


if __name__ == "__main__":
    main()

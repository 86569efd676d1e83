"""A profile over HTTP beside what a tracer in the same engine recorded of the same load.

A pocket engine runs with the step tracer and is profiled by the times at which its tokens arrive;
step-time models are fitted on both and predict the traced steps. One engine, on the CPU.

    python benchmarks/black_box.py --json
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from chimera_train.collect.device import cpu_name
from chimera_train.collect.over_http import collect_over_http
from chimera_train.collect.step_log import FILE_VARIABLE, read_step_log
from chimera_train.collect.steps import REGIMES, StepsSettings
from chimera_train.latency.fit import fit, predict, regimes
from chimera_train.latency.judge import errors
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import Declared, EngineSpec, Pool, load_pool

ROOT = Path(__file__).parents[1]
ENGINE = "llama"
KINDS = ("eq9", "table")


def profile(budget_s: float) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """Steps as seen over HTTP, steps as traced, and figures of the former."""
    with tempfile.TemporaryDirectory() as directory:
        log, out = Path(directory) / "steps.jsonl", Path(directory) / "out"
        with running_pool(
            load_pool(ROOT / "pipelines/demo/pool.yaml"),
            log_dir=Path(directory),
            output=Output(quiet=True),
            only=[ENGINE],
            extra_args={"scheduler_cls": "chimera_train.collect.tracer.tracing_scheduler"},
            extra_env={FILE_VARIABLE: str(log), "PYTHONPATH": str(ROOT)},
        ) as (engine,):
            flags = engine.spec.launch.args
            shared = ("max_num_seqs", "max_num_batched_tokens", "scheduling_policy")
            declared = Declared.model_validate(
                {
                    **{name: flags[name] for name in shared},
                    "device": cpu_name(),
                    "enable_chunked_prefill": True,
                    "async_scheduling": False,
                    "tensor_parallel_size": 1,
                }
            )
            spec = EngineSpec(
                name=ENGINE, model=engine.spec.model, base_url=engine.base_url, declared=declared
            )
            result = collect_over_http(
                Pool(engines=[spec]),
                ENGINE,
                out,
                StepsSettings(budget_s=budget_s),
                output=Output(quiet=True),
            )
        traced = pd.DataFrame(read_step_log(log)[1]).astype(float)
        figures = {
            "rows": dict(result.regimes),
            "unclear": result.unclear,
            "http_floor_ms": result.floor_ms,
            "traced_steps": len(traced),
        }
        return read_steps(out).frame, traced, figures


def compare(kind: str, seen: pd.DataFrame, traced: pd.DataFrame) -> dict[str, Any]:
    """Of both fits: coefficients, errors on the traced steps in %, and of their total by regime."""
    values = {}
    for name, frame in (("over_http", seen), ("tracer", traced)):
        fitted = fit(kind, frame)
        predicted = predict(fitted, traced)
        total = {}
        for index, regime in enumerate(REGIMES):
            mine = regimes(traced) == index
            measured_ms = traced["step_ms"][mine].sum()
            total[regime] = float(100 * (predicted[mine].sum() / measured_ms - 1))
        values[name] = {
            "terms": dict(fitted.terms),
            "mape": errors(predicted, traced)["mape"],
            "total": total,
        }
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--budget-s", type=float, default=60.0, help="seconds of load")
    arguments = parser.parse_args()

    seen, traced, figures = profile(arguments.budget_s)
    values = {**figures, **{kind: compare(kind, seen, traced) for kind in KINDS}}
    if arguments.json:
        print(json.dumps(values))
        return
    print(figures)
    for kind in KINDS:
        for name, value in values[kind].items():
            for what, numbers in value.items():
                print(kind, name, what, {key: float(f"{x:.4g}") for key, x in numbers.items()})


if __name__ == "__main__":
    main()

"""The demo's last act: the same stream of programs under two policies, live and simulated.

Three engines run; a gateway with the exported bundle stands in front of them, once with round
robin and first come first served, once with the bundle's Chimera policy. Both serve the same
Poisson stream of programs on questions that no predictor was fitted on. The simulator predicts both
rows from the recorded traces of the same questions. Whatever comes out is printed.

    python pipelines/demo/live.py [--json]
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pandas as pd
import yaml

from chimera_train.bundle.load import Bundle, load_bundle
from chimera_train.collect.drive import Arrival, drive
from chimera_train.collect.runner import ProgramResult
from chimera_train.config import Settings, load_section
from chimera_train.errors import ChimeraError
from chimera_train.files import write_json
from chimera_train.output import Output, table
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import Pool, load_pool
from chimera_train.scheduling.policy import PolicySettings, RoundRobin, dump_policy
from chimera_train.simulate.arrivals import Arrivals, poisson
from chimera_train.simulate.cluster import simulate_once
from chimera_train.simulate.workload import Workload, workload_from_traces
from chimera_train.tasks import get_task
from chimera_train.traces.store import load_traces
from chimera_train.workflows.model import load_workflow

GATEWAY_READY_TIMEOUT_S = 60


class LiveSettings(Settings):
    """The section ``live`` of ``params.yaml``."""

    rate_per_s: float
    programs: int
    seed: int


class CollectSection(Settings):
    """What of ``collect_traces`` the live act repeats."""

    model_config = {"extra": "ignore", "frozen": True}
    limit: int
    seed: int
    temperature: float


@contextmanager
def gateway(bundle: Path, pool: Path, policy: Path, decisions: Path) -> Iterator[str]:
    """A gateway in a process of its own; yields its base URL."""
    port_file = decisions.with_suffix(".log")
    command = [sys.executable, "-m", "chimera_train", "serve", "--bundle", str(bundle)]
    command += ["--pool", str(pool), "--policy", str(policy), "--decisions", str(decisions)]
    port = _free_port()
    with port_file.open("wb") as log:
        process = subprocess.Popen([*command, "--port", str(port)], stderr=log)
    try:
        _await_health(f"http://127.0.0.1:{port}/health", process, port_file)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_health(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + GATEWAY_READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if httpx2.get(url, trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.2)
    raise ChimeraError(f"The gateway did not become ready: {log.read_text()[-2000:]}")


def live_row(
    results: Sequence[ProgramResult], scores: Sequence[float], log: Path
) -> dict[str, Any]:
    """The figures of one live run; times in ms."""
    latency = np.array([result.latency_ms for result in results])
    decisions = pd.read_parquet(log)
    return {
        "programs": len(results),
        "failed": sum(result.error is not None for result in results),
        "latency_mean_ms": float(latency.mean()),
        "latency_p95_ms": float(np.quantile(latency, 0.95)),
        "score": float(np.mean(scores)),
        "queue_mean_ms": float(decisions["queue_ms"].mean()),
        "overhead_percent": float(100 * decisions["overhead_ms"].sum() / latency.sum()),
        "share": decisions.groupby("engine")["program_id"].nunique().div(len(results)).to_dict(),
    }


def simulated_row(
    pool: Pool,
    bundle: Bundle,
    workload: Workload,
    policy: PolicySettings,
    arrivals: Arrivals,
) -> dict[str, Any]:
    """What the simulator predicts of the same stream; times in ms."""
    simulation = simulate_once(pool, bundle.step_time, workload, policy, arrivals)
    latency = simulation.programs["program_latency_ms"]
    return {
        "programs": len(latency),
        "latency_mean_ms": float(latency.mean()),
        "latency_p95_ms": float(latency.quantile(0.95)),
        "score": float(simulation.programs["score"].mean()),
        "queue_mean_ms": float(simulation.requests["queue_ms"].mean()),
        "share": simulation.programs["engine"].value_counts(normalize=True).to_dict(),
    }


def attached(pool: Pool, engines: Sequence[RunningEngine]) -> dict[str, Any]:
    """The pool as a gateway sees it that finds its engines running."""
    values = pool.model_dump(exclude_none=True)
    for entry, engine in zip(values["engines"], engines, strict=True):
        entry["base_url"] = engine.base_url
        del entry["launch"]
    return values


def run(output: Output, out: Path) -> dict[str, Any]:
    """Both policies, live and simulated."""
    params = Path("params.yaml")
    settings = load_section(params, "live", LiveSettings)
    collected = load_section(params, "collect_traces", CollectSection)
    names = yaml.safe_load(params.read_text(encoding="utf-8"))
    pool = load_pool(Path(names["pool"]))
    bundle_dir = Path("artifacts/bundles") / names["export"]["name"] / "1"
    bundle = load_bundle(bundle_dir)
    task, workflow = get_task(names["task"]), load_workflow(names["workflow"])
    questions = {q.question_id: q for q in task.questions(collected.limit, collected.seed)}
    workload = workload_from_traces(
        load_traces(Path("data/traces")),
        [engine.model for engine in pool.engines],
        holdout=True,
        router=bundle.router,
        length=bundle.length,
    )
    arrivals = poisson(
        workload,
        rate_per_s=settings.rate_per_s,
        programs=settings.programs,
        seed=settings.seed,
    )
    stream = [
        Arrival(float(at_ms), questions[workload.questions[index]])
        for at_ms, index in zip(arrivals.times_ms, arrivals.questions, strict=True)
    ]
    policies: dict[str, PolicySettings] = {
        "round_robin + fcfs": RoundRobin(order="fcfs"),
        "chimera": bundle.policy,
    }
    rows: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as temporary,
        running_pool(pool, log_dir=Path("demo/logs"), output=output) as engines,
    ):
        pool_file = Path(temporary) / "pool.yaml"
        pool_file.write_text(yaml.safe_dump(attached(pool, engines)), encoding="utf-8")
        for number, (label, policy) in enumerate(policies.items()):
            policy_file = Path(temporary) / f"policy-{number}.json"
            write_json(policy_file, dump_policy(policy))
            log = Path(temporary) / f"decisions-{number}"
            with gateway(bundle_dir, pool_file, policy_file, log) as base_url:
                results = asyncio.run(
                    drive(
                        base_url,
                        bundle.manifest.name,
                        workflow,
                        stream,
                        seed=settings.seed,
                        temperature=collected.temperature,
                        output=output,
                        label=label.split()[0],
                    )
                )
            scores = [
                task.grade(arrival.question, result.answer)
                for arrival, result in zip(stream, results, strict=True)
            ]
            rows[label] = {
                "live": live_row(results, scores, log),
                "simulated": simulated_row(pool, bundle, workload, policy, arrivals),
            }
    write_json(out, {"settings": settings.model_dump(), "policies": rows})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("reports/live.json"))
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    rows = run(output, arguments.out)
    output.result(
        rows,
        table(
            ["policy", "", "mean s", "P95 s", "score", "queue ms", "overhead %", "share"],
            [
                [
                    label,
                    kind,
                    row["latency_mean_ms"] / 1000,
                    row["latency_p95_ms"] / 1000,
                    row["score"],
                    row["queue_mean_ms"],
                    row.get("overhead_percent"),
                    " ".join(f"{name} {share:.2f}" for name, share in sorted(row["share"].items())),
                ]
                for label, kinds in rows.items()
                for kind, row in kinds.items()
            ],
        ),
    )


if __name__ == "__main__":
    main()

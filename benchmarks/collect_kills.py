"""Whether a collection survives kill -9 of itself, and of its engine, at random moments.

    python benchmarks/collect_kills.py [--json] [--kills N] [--limit N] [--concurrency N] [--seed N]
                                       [--engine NAME] [--what collector|engine|both]

Real vLLM serves one pocket model. One collection is left alone. Another is killed N times, each
time a random moment after a random number of its programs is done, and begun again; a third keeps
running while processes of its engine are killed, which it starts again. All three must hold the
same programs, each once; at a concurrency of 1 and temperature 0 also the same tokens.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import yaml

from chimera_train.output import Output
from chimera_train.pool.launch import running_pool
from chimera_train.pool.schema import load_pool
from chimera_train.traces.store import read_table

POOL = Path(__file__).parents[1] / "pipelines/demo/pool.yaml"
_LEAST_BYTES = 200 << 20
TOKENS = ["stage", "prompt_tokens", "output_tokens", "finish_reason", "user_text", "output_text"]


def main() -> None:
    arguments = _arguments()
    figures = measure(arguments)
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return
    for name, found in figures.items():
        print(f"{name}: {found}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the collections; counts of programs, and whether all tokens are the same."""
    rng = random.Random(arguments.seed)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="collect-kills-") as directory:
        work = Path(directory)
        with _attached(arguments.engine, work) as pool:
            run = Collection(pool, work / "undisturbed", arguments)
            run.finish()
            figures["undisturbed"] = {"programs": len(run.table("programs"))}
            if arguments.what != "engine":
                killed = _kill_collector(pool, work / "killed", arguments, rng)
                figures["collector"] = {**killed, **_compare(work / "undisturbed", work / "killed")}
        if arguments.what != "collector":
            killed = _kill_engine(work / "engine", arguments, rng)
            figures["engine"] = {**killed, **_compare(work / "undisturbed", work / "engine")}
    return {
        **figures,
        "kills": arguments.kills,
        "limit": arguments.limit,
        "concurrency": arguments.concurrency,
        "seed": arguments.seed,
    }


class Collection:
    """`collect traces` in a process of its own."""

    def __init__(self, pool: Path, out: Path, arguments: argparse.Namespace) -> None:
        self.out = out
        self._command = [
            *(sys.executable, "-m", "chimera_train", "collect", "traces", "--pool", str(pool)),
            *("--task", "arithmetic", "--workflow", "math", "--engine", arguments.engine),
            *("--limit", str(arguments.limit), "--concurrency", str(arguments.concurrency)),
            *("--out", str(out), "--json"),
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """Begin, or go on."""
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def finish(self) -> None:
        """Run to the end."""
        subprocess.run(self._command, stdout=subprocess.DEVNULL, check=True)

    def wait_for(self, n_programs: int, process: subprocess.Popen[bytes]) -> bool:
        """Wait until so many programs are stored; False: the process has ended before."""
        journal = self.out / "journal.jsonl"
        while not journal.exists() or journal.read_bytes().count(b'"program"') < n_programs:
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        return True

    def table(self, name: str) -> pd.DataFrame:
        """A table of what was collected."""
        return read_table(self.out, name)


def _kill_collector(
    pool: Path, out: Path, arguments: argparse.Namespace, rng: random.Random
) -> dict[str, Any]:
    run, kills = Collection(pool, out, arguments), 0
    for target in _targets(arguments, rng):
        process = run.start()
        if run.wait_for(target, process):
            time.sleep(rng.uniform(0, 0.5))
            kills += process.poll() is None
            process.kill()
        process.wait()
    run.finish()
    return {"kills": kills}


def _kill_engine(out: Path, arguments: argparse.Namespace, rng: random.Random) -> dict[str, Any]:
    run, kills = Collection(POOL, out, arguments), []
    process = run.start()
    for target in _targets(arguments, rng):
        if run.wait_for(target, process):
            time.sleep(rng.uniform(0, 0.5))
            victim = rng.choice(_engine_processes(process.pid))
            kills.append(victim.name())
            victim.kill()
            # One loss at a time: the next program is finished by the next engine.
    if process.wait() != 0:
        raise RuntimeError(f"the collection ended with {process.returncode}")
    attempts = run.table("programs")["attempts"]
    return {
        "kills": len(kills),
        "killed": kills,
        "restarts": len(list((out / "logs").glob("*.*.log"))),
        "begun_again": int((attempts > 1).sum()),
    }


def _engine_processes(collector: int) -> list[psutil.Process]:
    """Processes of vLLM below the collector's supervisor of its engine, without small helpers."""
    (supervisor,) = psutil.Process(collector).children()
    processes = supervisor.children(recursive=True)
    return [process for process in processes if process.memory_info().rss > _LEAST_BYTES]


def _targets(arguments: argparse.Namespace, rng: random.Random) -> list[int]:
    """After how many finished programs to kill, in order; never twice after the same."""
    return sorted(rng.sample(range(1, arguments.limit - 1), arguments.kills))


def _compare(one: Path, other: Path) -> dict[str, Any]:
    expected, found = (read_table(out, "programs")["program_id"] for out in (one, other))
    stages = [
        read_table(out, "stages").sort_values(["program_id", "stage_index"])[TOKENS]
        for out in (one, other)
    ]
    return {
        "programs": len(found),
        "failed": int(read_table(other, "programs")["error"].notna().sum()),
        "lost": len(set(expected) - set(found)),
        "twice": int(found.duplicated().sum()),
        "foreign": len(set(found) - set(expected)),
        "same_tokens": stages[0].reset_index(drop=True).equals(stages[1].reset_index(drop=True)),
    }


@contextmanager
def _attached(engine: str, directory: Path) -> Iterator[Path]:
    """A pool file of one engine that already runs."""
    with running_pool(
        load_pool(POOL), log_dir=directory / "logs", output=Output(), only=[engine]
    ) as (running,):
        spec = {"name": engine, "model": running.spec.model, "base_url": running.base_url}
        path = directory / "pool.yaml"
        path.write_text(yaml.safe_dump({"engines": [spec]}))
        yield path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=10, help="of the collector, and of the engine")
    parser.add_argument("--limit", type=int, default=60, help="questions")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="qwen")
    parser.add_argument("--what", choices=["collector", "engine", "both"], default="both")
    return parser.parse_args()


if __name__ == "__main__":
    main()

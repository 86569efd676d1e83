"""The main job end to end on the embedded pool: the pipeline of dvc.yaml, then the live act.

    python pipelines/demo/run.py

Run from the project's root. Says at the end how long it took and how much memory it needed.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from chimera_train.output import Output, table


class PeakMemory(threading.Thread):
    """Samples the memory of this process and all below it; ``peak`` is in bytes.

    Proportional set size counts pages that processes share once.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        own = psutil.Process()
        while True:
            total = 0
            for process in [own, *own.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
            self.peak = max(self.peak, total)
            time.sleep(2)


def main() -> None:
    started = time.monotonic()
    memory = PeakMemory()
    memory.start()
    output = Output()
    Path("reports").mkdir(exist_ok=True)
    for command in (["dvc", "repro"], [sys.executable, "pipelines/demo/live.py"]):
        output.info(f"$ {' '.join(command)}")
        code = subprocess.run(command).returncode
        if code:
            sys.exit(code)
    length = json.loads(Path("reports/length.json").read_text())
    router = json.loads(Path("reports/router.json").read_text())
    output.result(
        {},
        "",
        "Remaining length, Kendall-τ distance on unseen questions (0 is perfect, 0.5 chance)",
        table(
            ["forest", *length["baselines"]],
            [[length["kendall_distance"]["overall"], *length["baselines"].values()]],
        ),
        "",
        f"Router, of kind {router['kind']}, on held-out questions",
        table(
            ["", "router", *router["baselines"]],
            [
                ["macro mAP", router["map_macro"], *router["baselines"].values()],
                ["routing gain", router["routing_gain"], *router["routing"]["baselines"].values()],
            ],
        ),
        "",
        f"{(time.monotonic() - started) / 60:.1f} min,"
        f" at most {memory.peak / 2**30:.1f} GiB of memory",
    )


if __name__ == "__main__":
    main()

"""How many programs a second the pool of a sweep serves when they come in turn to its engines.

    python pipelines/public/capacity.py pipelines/public/gsm8k/sweep.yaml

All programs are there at once; an engine's throughput is that between its first and its last tenth
of completions, and round robin serves as many programs a second as there are engines, times what
the slowest one does. The rates of the sweeps are shares of it.
"""

import argparse
import functools
from pathlib import Path

import numpy as np
from script import run

from chimera_train.config import load_yaml
from chimera_train.output import Output, table
from chimera_train.scheduling.policy import RoundRobin
from chimera_train.simulate.arrivals import recorded
from chimera_train.simulate.grid import Cell, load_grid, simulate
from chimera_train.simulate.settings import SweepSettings

PROGRAMS = 4000
SHARES = (0.5, 0.8, 0.95)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="sweep file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    inputs = load_grid(load_yaml(arguments.config, SweepSettings))[0].inputs
    at_once = functools.partial(recorded, times_ms=np.zeros(PROGRAMS))
    programs = simulate(Cell(inputs, RoundRobin(), None, at_once), seed=0).programs
    ended_ms = programs.groupby("engine")["program_latency_ms"]
    middle_ms = ended_ms.quantile(0.9) - ended_ms.quantile(0.1)
    per_s = (0.8 * ended_ms.size() / middle_ms * 1000).to_dict()
    capacity_per_s = float(min(per_s.values()) * len(per_s))
    rates = [round(share * capacity_per_s, 2) for share in SHARES]
    Output(as_json=arguments.json).result(
        {"per_engine_per_s": per_s, "round_robin_per_s": capacity_per_s, "rates_per_s": rates},
        table(["engine", "programs/s"], [[name, rate] for name, rate in per_s.items()]),
        f"round robin {capacity_per_s:.3g} programs/s; {SHARES} of it are {rates}",
    )


if __name__ == "__main__":
    run(main)

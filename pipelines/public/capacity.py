"""How many programs a second the pool of a sweep serves, and the rates that are shares of it.

    python pipelines/public/capacity.py pipelines/public/gsm8k/sweep.yaml

All programs are there at once; an engine's throughput is that between its first and its last tenth
of completions, and round robin serves as many programs a second as there are engines, times what
the slowest one does. Shortest queue keeps all of them busy: it serves the sum. The rates of
``sweep.yaml`` are shares of the former, those of ``on_time.yaml`` of the latter.
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
ON_TIME_SHARES = (0.5, 0.8, 0.95, 1.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="sweep file")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings = load_yaml(arguments.config, SweepSettings)
    # Round robin asks no predictors, which take a while to load.
    alone = settings.model_copy(update={"policies": [(RoundRobin(),)], "ablations": {}})
    inputs = load_grid(alone)[0].inputs
    at_once = functools.partial(recorded, times_ms=np.zeros(PROGRAMS))
    programs = simulate(Cell(inputs, RoundRobin(), None, at_once), seed=0).programs
    ended_ms = programs.groupby("engine")["program_latency_ms"]
    middle_ms = ended_ms.quantile(0.9) - ended_ms.quantile(0.1)
    per_s = (0.8 * ended_ms.size() / middle_ms * 1000).to_dict()
    in_turn_per_s = float(min(per_s.values()) * len(per_s))
    together_per_s = float(sum(per_s.values()))
    rates = [round(share * in_turn_per_s, 2) for share in SHARES]
    on_time_rates = [round(share * together_per_s, 2) for share in ON_TIME_SHARES]
    Output(as_json=arguments.json).result(
        {
            "per_engine_per_s": per_s,
            "round_robin_per_s": in_turn_per_s,
            "rates_per_s": rates,
            "shortest_queue_per_s": together_per_s,
            "on_time_rates_per_s": on_time_rates,
        },
        table(["engine", "programs/s"], [[name, rate] for name, rate in per_s.items()]),
        f"round robin {in_turn_per_s:.3g} programs/s; {SHARES} of it are {rates}",
        f"shortest queue {together_per_s:.3g} programs/s; {ON_TIME_SHARES} of it are"
        f" {on_time_rates}",
    )


if __name__ == "__main__":
    run(main)

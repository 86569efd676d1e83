"""Small pools and workloads, for simulations that are worked out by hand."""

import numpy as np

from chimera_train.pool.schema import EngineSpec, Pool
from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.workload import Workload


def make_pool(*names, model="m", device_group=None):
    return Pool(
        engines=[
            EngineSpec(name=name, model=model, device_group=device_group, base_url="http://x/v1")
            for name in names
        ]
    )


def make_workload(programs, *, models=("m",), confidence=None, remaining=None, tool_ms=None):
    """One sample of every model on every question: ``programs[i][j]`` = [(prompt, output), ...]."""
    flat = [trajectory for row in programs for trajectory in row]
    stages = [stage for trajectory in flat for stage in trajectory]
    n, k = len(programs), len(models)
    output = np.array([output for _, output in stages])
    ends = np.cumsum([len(trajectory) for trajectory in flat])
    true_remaining = np.concatenate(
        [np.cumsum([o for _, o in trajectory][::-1])[::-1] for trajectory in flat]
    )
    return Workload(
        questions=[f"q{i}" for i in range(n)],
        models=list(models),
        program_ids=[f"q{i}-{model}" for i in range(n) for model in models],
        first_trajectory=np.arange(n * k).reshape(n, k),
        n_samples=np.ones((n, k), dtype=np.int64),
        confidence=np.full((n, k), 0.5) if confidence is None else np.array(confidence),
        first_stage=np.concatenate([[0], ends]),
        score=np.linspace(0, 1, n * k),
        prompt_tokens=np.array([prompt for prompt, _ in stages]),
        output_tokens=output,
        remaining_tokens=np.array(
            true_remaining if remaining is None else remaining, dtype=np.float64
        ),
        stops=np.zeros(output.size, dtype=bool),
        tool_ms=np.zeros(output.size) if tool_ms is None else np.array(tool_ms, dtype=float),
    )


def in_turn(workload, times_ms):
    n = len(times_ms)
    questions = np.arange(n) % len(workload.questions)
    return Arrivals(np.array(times_ms, dtype=np.float64), questions, np.zeros(n))

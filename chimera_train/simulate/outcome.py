"""What a simulation leaves: a table of programs and a table of requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.sim import Log
from chimera_train.simulate.workload import Workload

__all__ = ["Simulation", "tables"]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened; times in ms.

    Attributes:
        programs: one row a program, in order of arrival: question_id, engine and trajectory (its
            program_id in the traces) with which it ended, arrival_ms, ttft_ms (of its first
            request), program_latency_ms, n_stages, total_output_tokens, cost (micro-dollars by the
            pool's token prices), score (of that trajectory). One that was refused has no engine, no
            trajectory, no times but its arrival, and 0 for the rest.
        requests: one row a stage, in order of arrival: program (row of ``programs``), stage_index,
            engine, arrival_ms, queue_ms (until its first step begins, wherever it waits), ttft_ms,
            e2e_ms, output_tokens, preemptions, restarts (how often it lost its engine; all the rest
            is of the engine that completed it).
        busy_ms, steps, extrapolated_steps: of each engine, by name; the last are those steps that
            lie outside what its step-time model was fitted on.
    """

    programs: pd.DataFrame
    requests: pd.DataFrame
    busy_ms: dict[str, float]
    steps: dict[str, int]
    extrapolated_steps: dict[str, int]


def tables(
    log: Log,
    workload: Workload,
    arrivals: Arrivals,
    engines: Sequence[str],
    input_cost: npt.NDArray[np.float64],
    output_cost: npt.NDArray[np.float64],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """``Simulation.programs`` and ``.requests`` of a log in which nobody waits any more.

    The costs are micro-dollars per token of each engine, shape (n_engines,).
    """
    n = int(log.n[0])
    program, stage, engine = (column[:n] for column in (log.program, log.stage, log.engine))
    arrival_ms, end_ms = log.arrival_ms[:n], log.end_ms[:n]
    names = pd.array(engines, dtype="str").take(engine)
    n_programs = log.current.size
    served = log.current >= 0
    trajectory = np.where(served, log.trajectory, -1)
    # Requests are in order of arrival: a program's last write is its first stage, or its last.
    begin_ms, first_token_ms = log.refused_ms.copy(), np.full(n_programs, np.nan)
    begin_ms[program[::-1]] = arrival_ms[::-1]
    first_token_ms[program[::-1]] = log.first_token_ms[:n][::-1]
    latency_ms = np.full(n_programs, np.nan)
    latency_ms[program] = end_ms
    latency_ms -= begin_ms
    prompt_tokens, output_tokens = workload.prompt_tokens[stage], workload.output_tokens[stage]
    costs = input_cost[engine] * prompt_tokens + output_cost[engine] * output_tokens
    programs = pd.DataFrame(
        {
            "question_id": pd.array(workload.questions, dtype="str").take(arrivals.questions),
            "engine": names.take(log.current, allow_fill=True),
            "trajectory": pd.array(workload.program_ids, dtype="str").take(
                trajectory, allow_fill=True
            ),
            "arrival_ms": begin_ms,
            "n_stages": np.where(served, log.stage_index[log.current] + 1, 0),
            "score": np.where(served, workload.score[log.trajectory], 0.0),
            "ttft_ms": first_token_ms - begin_ms,
            "program_latency_ms": latency_ms,
            "total_output_tokens": np.bincount(program, output_tokens, n_programs).astype(np.int64),
            "cost": np.bincount(program, costs, n_programs),
        }
    )
    requests = pd.DataFrame(
        {
            "program": program,
            "stage_index": log.stage_index[:n],
            "engine": names,
            "arrival_ms": arrival_ms,
            "queue_ms": log.start_ms[:n] - arrival_ms,
            "ttft_ms": log.first_token_ms[:n] - arrival_ms,
            "e2e_ms": end_ms - arrival_ms,
            "output_tokens": output_tokens,
            "preemptions": log.preemptions[:n],
            "restarts": log.restarts[:n],
        }
    )
    return programs, requests

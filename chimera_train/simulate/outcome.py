"""What a simulation leaves: a table of programs and a table of requests."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.simulate.arrivals import Arrivals
from chimera_train.simulate.workload import Workload

__all__ = ["RequestLog", "Simulation"]


@dataclass(frozen=True, slots=True)
class Simulation:
    """What happened; times in ms.

    Attributes:
        programs: one row a program, in order of arrival: question_id, engine, trajectory (its
            program_id in the traces), arrival_ms, program_latency_ms, n_stages,
            total_output_tokens, score.
        requests: one row a stage, in order of arrival: program (row of ``programs``), stage_index,
            engine, arrival_ms, queue_ms (until its first step begins, wherever it waits), ttft_ms,
            e2e_ms, output_tokens, preemptions.
        busy_ms, steps, extrapolated_steps: of each engine, by name; the last are those steps that
            lie outside what its step-time model was fitted on.
    """

    programs: pd.DataFrame
    requests: pd.DataFrame
    busy_ms: dict[str, float]
    steps: dict[str, int]
    extrapolated_steps: dict[str, int]


class RequestLog:
    """Every request by its id, which is its number in order of arrival.

    Attributes:
        program, stage: number of the program, and row of the workload's stages.
        priority: as the scheduler decided it.
    """

    def __init__(self) -> None:
        self.program: list[int] = []
        self.stage: list[int] = []
        self.priority: list[int] = []
        self._arrival_ms: list[float] = []
        self._start_ms: list[float] = []
        self._first_token_ms: list[float] = []
        self._end_ms: list[float] = []
        self._preemptions: list[int] = []

    def __len__(self) -> int:
        return len(self.program)

    def arrived(self, program: int, stage: int, priority: int, now_ms: float) -> None:
        """The next request id arrived."""
        self.program.append(program)
        self.stage.append(stage)
        self.priority.append(priority)
        self._arrival_ms.append(now_ms)
        for times in (self._start_ms, self._first_token_ms, self._end_ms):
            times.append(np.nan)
        self._preemptions.append(0)

    def completed(
        self,
        request_id: int,
        *,
        start_ms: float,
        first_token_ms: float,
        end_ms: float,
        preemptions: int,
    ) -> None:
        """A request was served."""
        self._start_ms[request_id] = start_ms
        self._first_token_ms[request_id] = first_token_ms
        self._end_ms[request_id] = end_ms
        self._preemptions[request_id] = preemptions

    def tables(
        self,
        workload: Workload,
        arrivals: Arrivals,
        engine: npt.NDArray[np.str_],
        trajectory: npt.NDArray[np.int64],
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """``Simulation.programs`` and ``.requests``, from each program's engine and trajectory."""
        program, stage = np.array(self.program), np.array(self.stage)
        arrival_ms, end_ms = np.array(self._arrival_ms), np.array(self._end_ms)
        first = workload.first_stage[trajectory]
        programs = pd.DataFrame(
            {
                "question_id": np.array(workload.questions)[arrivals.questions],
                "engine": engine,
                "trajectory": np.array(workload.program_ids)[trajectory],
                "arrival_ms": arrivals.times_ms,
                "n_stages": workload.first_stage[trajectory + 1] - first,
                "score": workload.score[trajectory],
            }
        )
        requests = pd.DataFrame(
            {
                "program": program,
                "stage_index": stage - first[program],
                "engine": engine[program],
                "arrival_ms": arrival_ms,
                "queue_ms": np.array(self._start_ms) - arrival_ms,
                "ttft_ms": np.array(self._first_token_ms) - arrival_ms,
                "e2e_ms": end_ms - arrival_ms,
                "output_tokens": workload.output_tokens[stage],
                "preemptions": self._preemptions,
            }
        )
        by_program = requests.groupby("program")
        programs["program_latency_ms"] = (requests["arrival_ms"] + requests["e2e_ms"]).groupby(
            requests["program"]
        ).max() - programs["arrival_ms"]
        programs["total_output_tokens"] = by_program["output_tokens"].sum()
        return programs, requests

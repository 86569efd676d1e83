"""Sends programs to a gateway at given times, to see what a policy does under a given load."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import httpx2

from chimera_train.collect.request import open_endpoint
from chimera_train.collect.runner import ProgramResult, Sampling, run_program
from chimera_train.errors import ChimeraError
from chimera_train.output import Output
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Workflow

__all__ = ["MAX_LAG", "Arrival", "drive"]

#: Largest tolerated lag of the dispatch behind its schedule, as a share of the schedule's length.
MAX_LAG = 0.10


@dataclass(frozen=True, slots=True)
class Arrival:
    """One program: its question, and when it starts, in ms after the first moment of the run."""

    at_ms: float
    question: Question


async def drive(
    base_url: str,
    model: str,
    workflow: Workflow,
    arrivals: Sequence[Arrival],
    *,
    seed: int,
    temperature: float,
    output: Output,
    label: str,
) -> list[ProgramResult]:
    """Run one program per arrival, each at its time whatever became of the others.

    ``base_url`` is a gateway's and ends in ``/v1``; ``model`` is the name it answers to. The
    ``arrivals`` are in order of time; program ``i`` is called ``{label}-{i}``. The end of every
    program is reported to the gateway, which then forgets its load.

    Returns:
        The programs in order of arrival.

    Raises:
        ChimeraError: programs were sent so late that the offered load was not the one asked for.
    """
    lag_ms = 0.0
    tasks: list[asyncio.Task[ProgramResult]] = []
    async with (
        open_endpoint(base_url, model) as endpoint,
        httpx2.AsyncClient(base_url=base_url, trust_env=False) as control,
        asyncio.TaskGroup() as group,
    ):
        with output.progress() as progress:
            bar = progress.add_task(label, total=len(arrivals), note="")
            start = time.perf_counter()

            async def run(index: int, question: Question) -> ProgramResult:
                program_id = f"{label}-{index}"
                result = await run_program(
                    endpoint,
                    workflow,
                    question,
                    Sampling(seed, temperature),
                    program_id=program_id,
                    sample=index,
                )
                await control.post(f"/programs/{quote(program_id)}/end")
                progress.advance(bar)
                return result

            for index, arrival in enumerate(arrivals):
                wait_s = arrival.at_ms / 1000 - (time.perf_counter() - start)
                await asyncio.sleep(max(0.0, wait_s))
                lag_ms = max(lag_ms, (time.perf_counter() - start) * 1000 - arrival.at_ms)
                tasks.append(group.create_task(run(index, arrival.question)))
            results = list(await asyncio.gather(*tasks))
    if lag_ms > MAX_LAG * arrivals[-1].at_ms:
        raise ChimeraError(
            f"Programs were sent up to {lag_ms:.0f} ms late, more than {MAX_LAG:.0%} of the"
            " schedule: the offered load was not reached; lower the rate or free the machine."
        )
    return results

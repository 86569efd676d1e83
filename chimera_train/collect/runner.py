"""Runs one program: one workflow on one question, against one OpenAI-compatible endpoint.

The endpoint may be an engine or a gateway in front of several: every request carries its program,
workflow and stage in headers, which engines ignore.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from chimera_train.collect.reply import ms_since, well_formed
from chimera_train.collect.request import Call, Endpoint, StageResult, ask
from chimera_train.tasks.model import Question
from chimera_train.workflows.fan_out import items, numbered
from chimera_train.workflows.model import Items, Stage, Workflow, render, verdict

__all__ = ["ProgramResult", "Sampling", "Tool", "request_seed", "run_program"]

#: Answers a tool stage: its input text on one question; blocking, and never raises.
Tool = Callable[[Question, str], str]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How requests are sampled where the workflow does not say.

    Attributes:
        seed: every request's own is made of it (``request_seed``).
        temperature, top_p: of stages without their own; None for ``top_p``: it is not sent.
        max_tokens: of every stage, in place of the workflow's; None: the workflow's.
    """

    seed: int
    temperature: float
    top_p: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """One executed program.

    Attributes:
        latency_ms: first request sent until the last stage completed.
        stages: in the order in which they were sent; skipped stages are absent.
        answer: output of the first of ``workflow.answer`` that ran; empty when none did.
        error: the first failed stage's error; None when every stage that had to run completed.
        is_lost: whether a connection failed, and nothing else did.
    """

    program_id: str
    started_at: datetime
    latency_ms: float
    stages: tuple[StageResult, ...]
    answer: str
    error: str | None
    is_lost: bool = False

    @property
    def output_tokens(self) -> int:
        """Output tokens of all stages."""
        return sum(stage.output_tokens for stage in self.stages)


def request_seed(
    seed: int, question_id: str, sample: int, stage: str, branch: int | None = None
) -> int:
    """The sampling seed of one request, below 2**31: the same in every run and on every model."""
    name = stage if branch is None else f"{stage}#{branch}"
    digest = hashlib.sha256(f"{seed}\0{question_id}\0{sample}\0{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


async def run_program(
    endpoint: Endpoint,
    workflow: Workflow,
    question: Question,
    sampling: Sampling,
    *,
    program_id: str,
    sample: int,
    tools: Mapping[str, Tool] = {},
) -> ProgramResult:
    """Run ``workflow`` on ``question``; stages whose dependencies are met run at the same time.

    A stage with a ``when`` whose verdict was not given is skipped, and so is one that fans out over
    no item; a skipped stage does not hold up the stages that depend on it, in whose texts it is
    empty. After a failed stage no further stage is started. Failures of the endpoint are recorded
    in the result, never raised. ``tools`` has every tool that the workflow names.
    """
    program = _Program(endpoint, workflow, question, sampling, program_id, sample, tools)
    return await program.run()


class _Program:
    """A program while it runs."""

    def __init__(
        self,
        endpoint: Endpoint,
        workflow: Workflow,
        question: Question,
        sampling: Sampling,
        program_id: str,
        sample: int,
        tools: Mapping[str, Tool],
    ) -> None:
        self._endpoint = endpoint
        self._workflow = workflow
        self._question = question
        self._sampling = sampling
        self._program_id = program_id
        self._sample = sample
        self._tools = tools
        self._start = 0.0
        self._rows: dict[int, StageResult] = {}
        self._n_sent = 0
        self._texts: dict[str, str] = {}
        # The rows whose outputs whoever depends on a stage has waited for.
        self._rows_of: dict[str, tuple[int, ...]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> ProgramResult:
        started_at = datetime.now(UTC)
        self._start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for name in self._workflow.order():
                self._tasks[name] = group.create_task(self._run_stage(self._workflow.stage(name)))
        latency_ms = ms_since(self._start)
        stages = [self._rows[index] for index in sorted(self._rows)]
        # A program starts when its first request is sent, however long that had to wait.
        first_ms = min((stage.start_ms for stage in stages), default=0.0)
        failed = [stage for stage in stages if stage.error is not None]
        return ProgramResult(
            program_id=self._program_id,
            started_at=started_at + timedelta(milliseconds=first_ms),
            latency_ms=latency_ms - first_ms,
            stages=tuple(replace(stage, start_ms=stage.start_ms - first_ms) for stage in stages),
            answer=next(
                (self._texts[name] for name in self._workflow.answer if name in self._texts), ""
            ),
            error=failed[0].error if failed else None,
            is_lost=bool(failed) and all(stage.is_lost for stage in failed),
        )

    async def _run_stage(self, stage: Stage) -> None:
        for name in stage.depends_on:
            await self._tasks[name]
        if any(row.error is not None for row in self._rows.values()):
            return
        after = tuple(sorted({row for name in stage.depends_on for row in self._rows_of[name]}))
        branches = self._branches(stage)
        if not branches:
            self._rows_of[stage.id] = after
            return
        rows = range(self._n_sent, self._n_sent + len(branches))
        self._n_sent = rows.stop
        await asyncio.gather(
            *(
                self._run_branch(stage, row, None if stage.fan_out is None else branch, item, after)
                for branch, (row, item) in enumerate(zip(rows, branches, strict=True))
            )
        )
        self._rows_of[stage.id] = tuple(rows)
        outputs = [self._rows[row].output_text for row in rows]
        self._texts[stage.id] = outputs[0] if stage.fan_out is None else numbered(outputs)

    def _branches(self, stage: Stage) -> list[str]:
        """The item of every copy that is to run, empty where there is none."""
        when, fan_out = stage.when, stage.fan_out
        if when is not None and verdict(self._texts.get(when.stage, "")) != when.verdict:
            return []
        if isinstance(fan_out, Items):
            return items(self._texts.get(fan_out.items_of, ""), fan_out.max)
        return [""] * (fan_out or 1)

    async def _run_branch(
        self, stage: Stage, row: int, branch: int | None, item: str, after: tuple[int, ...]
    ) -> None:
        values = {**self._texts, "question": self._question.text, "item": item}
        user = render(stage.user, values)
        if stage.tool is not None:
            self._rows[row] = await self._use_tool(stage, stage.tool, user, after)
            return
        sampling, own = self._sampling, stage.temperature
        call = Call(
            stage=stage.id,
            role=stage.role,
            branch=branch,
            after=after,
            system_text=render(stage.system, values),
            user_text=user,
            max_tokens=sampling.max_tokens or stage.max_tokens,
            temperature=sampling.temperature if own is None else own,
            top_p=stage.top_p or sampling.top_p,
            seed=request_seed(
                sampling.seed, self._question.question_id, self._sample, stage.id, branch
            ),
        )
        headers = {
            "X-Program-Id": self._program_id,
            "X-Workflow": self._workflow.name,
            "X-Stage": stage.id,
        }
        self._rows[row] = await ask(
            self._endpoint, call, headers=headers, program_start=self._start
        )

    async def _use_tool(
        self, stage: Stage, tool: str, text: str, after: tuple[int, ...]
    ) -> StageResult:
        start = time.perf_counter()
        report = await asyncio.to_thread(self._tools[tool], self._question, text)
        return StageResult(
            stage=stage.id,
            role=stage.role,
            after=after,
            user_text=text,
            tool=tool,
            output_text=well_formed(report),
            start_ms=(start - self._start) * 1000,
            e2e_ms=ms_since(start),
        )

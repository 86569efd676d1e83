"""A step profile in the making: what it is to hold, what it holds, and measuring the rest."""

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai

from chimera_train.collect import provenance
from chimera_train.collect.alive import require_alive
from chimera_train.collect.device import clock_changes
from chimera_train.collect.journal import Journal, differences
from chimera_train.collect.request import open_endpoint
from chimera_train.collect.step_data_set import StepsResult, write_profile
from chimera_train.collect.step_load import Load
from chimera_train.collect.step_log import COLUMNS, StepLogReader
from chimera_train.collect.step_plan import Cell, plan_passes
from chimera_train.collect.step_walk import StepsSettings, Walk
from chimera_train.config import Settings, parse_settings
from chimera_train.errors import ConfigError, DataError, EngineError
from chimera_train.output import Output
from chimera_train.pool.installation import TESTED_VLLM, is_tested
from chimera_train.pool.launch import RunningEngine
from chimera_train.pool.schema import EngineInfo

__all__ = ["Profile"]

# No cell of several requests may take more of the budget than this for its prompts alone.
_CELL_SHARE = 0.05


class _Plan(Settings):
    """What the batches of a profile follow from, beside the seed."""

    engine: EngineInfo
    max_prompt_tokens: float


class Profile:
    """The measured batches of one engine, in a journal, and the way to the others.

    Args:
        out: directory of the data set.
        engine: name of the engine.
        journal: what was measured already.
        settings: when to stop.
    """

    def __init__(self, out: Path, engine: str, journal: Journal, settings: StepsSettings) -> None:
        self._out = out
        self._engine = engine
        self._journal = journal
        self._settings = settings

    @property
    def is_begun(self) -> bool:
        """Whether any batch has been measured."""
        return bool(self._journal.entries)

    def is_complete(self) -> bool:
        """Whether the batches measured so far are all that are to be."""
        return self.is_begun and next(self._walk(self._stored_plan()).missing(), None) is None

    def write(self) -> StepsResult:
        """Write the data set of what was measured, see ``write_profile``."""
        plan = self._stored_plan()
        settings = {"engine": self._engine, **self._settings.model_dump()}
        return write_profile(self._out, plan.engine, self._journal, self._walk(plan), settings)

    def measure(self, running: RunningEngine, log: Path, output: Output) -> None:
        """Measure what is missing on ``running``, whose tracer writes ``log``.

        The data set is written if the load is cut short; what went before can be used.

        Raises:
            ConfigError: the engine is not the one that was measured before, or is too small.
            EngineError: it died or refused a request.
        """
        reader = StepLogReader(log)
        described = dict(reader.engine)
        vocabulary = described.pop("vocab_size")
        values = {"model": running.spec.model, **described}
        engine = parse_settings(values, EngineInfo, str(log))
        if not is_tested(engine.vllm_version):
            output.warn(
                f"vLLM {engine.vllm_version} was not tested with this tracer, only"
                f" {' and '.join(TESTED_VLLM)}: check its profile with 'simulate replay'"
            )
        self._require_same(engine)
        try:
            asyncio.run(self._load(running, reader, engine, vocabulary, output))
        except BaseException as error:  # Ctrl-C and SIGTERM too
            if self.is_begun:
                self.write()
                output.warn(f"{self._out} holds a part of the profile: the same command goes on")
            if isinstance(error, openai.APIError | httpx2.TransportError):
                require_alive(running)
                raise EngineError(
                    f"Engine '{self._engine}' refused a profiling request: {error}."
                ) from error
            raise

    async def _load(
        self,
        running: RunningEngine,
        reader: StepLogReader,
        engine: EngineInfo,
        vocabulary: int,
        output: Output,
    ) -> None:
        run = provenance.describe_run([running])
        async with open_endpoint(running.base_url, running.served_model) as endpoint:
            # Not the plan's generator: a run that goes on may draw the same prompts again, since
            # the engine that knew them is gone, but has to find the same plan.
            rng = np.random.default_rng([self._settings.seed, 1])
            load = Load(endpoint, engine, vocabulary, rng)
            rate = await load.warm_up()
            if self.is_begun:
                plan = self._stored_plan()
            else:
                tokens = rate * self._settings.budget_s * _CELL_SHARE
                plan = _Plan(engine=engine, max_prompt_tokens=tokens)
            before = await load.clocks()
            self._journal.begin_run({**run, "plan": plan.model_dump(), "clocks_before": before})
            reader.new_steps()  # those of the warm-up
            await self._run(self._walk(plan), load, reader, output)
            after = await load.clocks()
            self._journal.end_run({"ended_at": provenance.now(), "clocks_after": after})
        for change in clock_changes(before, after):
            output.warn(f"a clock changed during the profile, {change}: fix it, or let it cool")

    async def _run(self, walk: Walk, load: Load, reader: StepLogReader, output: Output) -> None:
        with output.progress() as progress:
            total = round(self._settings.budget_s)
            line = progress.add_task(self._engine, total=total, note="")
            mark_s = time.monotonic()
            for key, cell in walk.missing():
                await load.run(cell)
                now_s = time.monotonic()
                self._journal.append(_entry(key, cell, now_s - mark_s, reader))
                mark_s = now_s
                note = f"s, pass {walk.passes + 1}, {len(self._journal.entries)} batches"
                progress.update(line, completed=int(walk.spent_s), note=note)

    def _walk(self, plan: _Plan) -> Walk:
        rng = np.random.default_rng(self._settings.seed)
        passes = plan_passes(plan.engine, plan.max_prompt_tokens, rng)
        return Walk(passes, self._journal.entries, self._settings)

    def _stored_plan(self) -> _Plan:
        try:
            return parse_settings(self._journal.runs[0]["plan"], _Plan, str(self._out))
        except (LookupError, ConfigError) as error:
            raise DataError(
                f"The journal in {self._out} does not say what its batches follow from: restore the"
                " file or collect into another --out."
            ) from error

    def _require_same(self, engine: EngineInfo) -> None:
        """Steps do not depend on the number of KV blocks, which free memory decides anew."""
        if not self.is_begun:
            return
        before, now = (
            info.model_dump(exclude={"num_kv_blocks"})
            for info in (self._stored_plan().engine, engine)
        )
        if before != now:
            raise ConfigError(
                f"{self._out} was collected from another engine: {differences(before, now)}. Use"
                " the same one or another --out."
            )


def _entry(key: str, cell: Cell, load_s: float, reader: StepLogReader) -> dict[str, Any]:
    steps = [[step[name] for name in COLUMNS] for step in reader.new_steps()]
    return {"batch": key, "cell": asdict(cell), "load_s": load_s, "steps": steps}

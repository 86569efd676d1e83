"""Profiling the steps of one engine: a designed load, and the tracer's record of every step."""

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
from pydantic import Field

import chimera_train
from chimera_train.collect import provenance
from chimera_train.collect.alive import require_alive
from chimera_train.collect.runner import Endpoint, open_endpoint
from chimera_train.collect.step_log import FILE_VARIABLE, read_step_log
from chimera_train.collect.step_plan import Cell, plan_cells
from chimera_train.config import Settings, parse_settings
from chimera_train.errors import ConfigError, EngineError
from chimera_train.files import write_json
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import EngineInfo, EngineSpec, Pool
from chimera_train.traces.schemas import SCHEMA_VERSION, SCHEMAS
from chimera_train.traces.store import write_table

__all__ = ["REGIMES", "StepsResult", "StepsSettings", "collect_steps"]

REGIMES = ("decode_only", "prefill_only", "mixed")

_SCHEDULER = "chimera_train.collect.tracer.tracing_scheduler"
# No cell of several requests may take more of the budget than this for its prompts alone.
_CELL_SHARE = 0.05


class StepsSettings(Settings):
    """How to profile.

    Attributes:
        budget_s: seconds of load, after the engine has started and warmed up.
        seed: draws batch sizes, prompt lengths and their tokens.
    """

    budget_s: float = Field(60.0, gt=0)
    seed: int = Field(0, ge=0)


@dataclass(frozen=True, slots=True)
class StepsResult:
    """Steps recorded, by regime (see ``REGIMES``), and what the engine is."""

    engine: EngineInfo
    regimes: Mapping[str, int]

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(self.regimes.values())


def collect_steps(
    pool: Pool, engine: str, out: Path, settings: StepsSettings, *, output: Output
) -> StepsResult:
    """Start one engine alone with the step tracer, put a designed load on it, write its steps.

    Writes ``steps.parquet`` without the warm-up, ``engine.json``, and ``provenance.json`` last.
    Prompts are random tokens, so that a prefix cache finds nothing and every prefill is computed.

    Raises:
        ConfigError: an unknown engine or one that is not started here, a directory that holds a
            data set or cannot be written, an engine too small to profile, or a budget too small
            for every regime to be seen.
        EngineError: the engine did not start, died, or refused the load.
    """
    (spec,) = pool.select([engine])
    _check_profilable(spec)
    provenance.require_new(out)
    with tempfile.TemporaryDirectory(prefix="chimera-steps-") as directory:
        log = Path(directory) / "steps.jsonl"
        # The engine's interpreter may be another one, without this package.
        package = Path(chimera_train.__file__).parent
        (Path(directory) / package.name).symlink_to(package)
        with running_pool(
            pool,
            log_dir=out / "logs",
            output=output,
            only=[engine],
            extra_args={"scheduler_cls": _SCHEDULER},
            extra_env={FILE_VARIABLE: str(log), "PYTHONPATH": _python_path(spec, directory)},
        ) as (running,):
            run = provenance.describe_run([running])
            described, _ = read_step_log(log)
            vocabulary = described.pop("vocab_size")
            info = parse_settings({"model": spec.model, **described}, EngineInfo, str(log))
            start_s = _profile(running, info, vocabulary, settings, output)
        _, steps = read_step_log(log)
    kept = [step for step in steps if step["end_s"] > start_s]
    regimes = Counter(_regime(step) for step in kept)
    missing = [regime for regime in REGIMES if not regimes[regime]]
    if missing:
        raise ConfigError(
            f"No {' and no '.join(missing)} step in {settings.budget_s:g} s: raise --budget-s"
            " (mixed steps also need max_num_seqs above 1)."
        )
    write_table(out, "steps", [_row(engine, step) for step in kept])
    write_json(out / "engine.json", info.model_dump())
    write_json(
        out / provenance.FILE_NAME,
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete",
            "settings": {"engine": engine, **settings.model_dump()},
            "counts": {"steps": len(kept), "warm_up": len(steps) - len(kept), **regimes},
            "runs": [run],
            "ended_at": provenance.now(),
        },
    )
    return StepsResult(info, {regime: regimes[regime] for regime in REGIMES})


def _check_profilable(spec: EngineSpec) -> None:
    if spec.launch is None:
        raise ConfigError(
            f"Engine '{spec.name}' already runs (base_url), but profiling starts it with a tracer:"
            " give it 'launch' instead."
        )
    if "scheduler_cls" in {name.replace("-", "_") for name in spec.launch.args}:
        raise ConfigError(
            f"Engine '{spec.name}' has a scheduler class of its own, which cannot be traced:"
            " remove launch.args.scheduler_cls."
        )


def _python_path(spec: EngineSpec, directory: str) -> str:
    own = spec.launch.env.get("PYTHONPATH") if spec.launch else None
    return os.pathsep.join(filter(None, [directory, own or os.environ.get("PYTHONPATH")]))


def _regime(step: Mapping[str, Any]) -> str:
    if step["prefill_tokens"] == 0:
        return "decode_only"
    return "mixed" if step["decode_tokens"] else "prefill_only"


def _row(engine: str, step: Mapping[str, Any]) -> dict[str, Any]:
    return {"engine": engine} | {
        name: value for name, value in step.items() if name in SCHEMAS["steps"].names
    }


def _profile(
    engine: RunningEngine,
    info: EngineInfo,
    vocabulary: int,
    settings: StepsSettings,
    output: Output,
) -> float:
    """Put the load on ``engine``; the time (``time.monotonic``) at which the warm-up was over."""
    try:
        return asyncio.run(_load(engine, info, vocabulary, settings, output))
    except openai.APIError as error:
        require_alive(engine)
        raise EngineError(
            f"Engine '{engine.spec.name}' refused a profiling request: {error}."
        ) from error


async def _load(
    engine: RunningEngine,
    info: EngineInfo,
    vocabulary: int,
    settings: StepsSettings,
    output: Output,
) -> float:
    rng = np.random.default_rng(settings.seed)
    async with open_endpoint(engine.base_url, engine.served_model) as endpoint:
        load = _Load(endpoint, vocabulary, rng)
        rate = await load.warm_up(info)
        cells = plan_cells(info, rate * settings.budget_s * _CELL_SHARE, rng)
        start_s = time.monotonic()
        with output.progress() as progress:
            line = progress.add_task(engine.spec.name, total=round(settings.budget_s), note="")
            n_cells = 0
            while (elapsed_s := time.monotonic() - start_s) < settings.budget_s:
                await load.run(next(cells))
                n_cells += 1
                progress.update(line, completed=int(elapsed_s), note=f"s, {n_cells} batches")
        return start_s


class _Load:
    """Sends batches of random prompts."""

    def __init__(self, endpoint: Endpoint, vocabulary: int, rng: np.random.Generator) -> None:
        self._endpoint = endpoint
        self._vocabulary = vocabulary
        self._rng = rng
        self._is_decoding = False

    async def warm_up(self, engine: EngineInfo) -> float:
        """Touch all regimes once; prompt tokens per second of a full prefill batch."""
        prompt_tokens = min(engine.max_num_batched_tokens, engine.max_model_len // 2)
        n_seqs = max(1, min(engine.max_num_batched_tokens // prompt_tokens, engine.max_num_seqs))
        await self.run(Cell("mixed", 1, prompt_tokens, 16, prompt_tokens))
        await self._send(n_seqs, prompt_tokens, 1)
        start_s = time.monotonic()
        await self._send(n_seqs, prompt_tokens, 1)
        return n_seqs * prompt_tokens / (time.monotonic() - start_s)

    async def run(self, cell: Cell) -> None:
        """Run one cell to its end."""
        self._is_decoding = True
        await asyncio.gather(self._batch(cell), self._arrivals(cell))

    async def _batch(self, cell: Cell) -> None:
        try:
            await self._send(cell.n_seqs, cell.prompt_tokens, cell.output_tokens)
        finally:
            self._is_decoding = False

    async def _arrivals(self, cell: Cell) -> None:
        while self._is_decoding and cell.arriving_tokens:
            await self._send(1, cell.arriving_tokens, 1)

    async def _send(self, n_seqs: int, prompt_tokens: int, output_tokens: int) -> None:
        prompts = self._rng.integers(self._vocabulary, size=(n_seqs, prompt_tokens))
        await self._endpoint.client.completions.create(
            model=self._endpoint.model,
            prompt=prompts.tolist(),
            max_tokens=output_tokens,
            extra_body={"ignore_eos": True},
        )

"""Profiling the steps of one engine: a designed load, and the tracer's record of every step."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chimera_train
from chimera_train.collect.journal import open_journal
from chimera_train.collect.step_data_set import REGIMES, StepsResult
from chimera_train.collect.step_log import COLUMNS, FILE_VARIABLE
from chimera_train.collect.step_profile import Profile
from chimera_train.collect.step_walk import StepsSettings, batch_key
from chimera_train.errors import ConfigError
from chimera_train.output import Output
from chimera_train.pool.launch import RunningEngine, running_pool
from chimera_train.pool.schema import EngineSpec, Launch, Pool

__all__ = ["REGIMES", "StepsResult", "StepsSettings", "collect_steps"]

_SCHEDULER = "chimera_train.collect.tracer.tracing_scheduler"
# What a step-time model needs to hold over context (SFS).
_ENOUGH_POINTS = 4


def collect_steps(
    pool: Pool, engine: str, out: Path, settings: StepsSettings, *, output: Output
) -> StepsResult:
    """Start one engine alone with the step tracer, put a designed load on it, write its steps.

    Each batch is in a journal before the next is sent, so that a run that was killed or
    interrupted, or whose engine died, goes on where it stopped. So does one with more budget or
    more precision than before. ``steps.parquet`` without the warm-up, ``engine.json``, and
    ``provenance.json`` last are written when the load ends, in whatever way.

    Prompts are random tokens, so that a prefix cache finds nothing and every prefill is computed.

    Raises:
        ConfigError: an unknown engine or one that is not started here; a directory that cannot be
            written or holds another data set, steps of other settings, or of an engine that
            resolved to another configuration; an engine too small to profile; or a budget too small
            for every regime to be seen.
        EngineError: the engine did not start, died, or refused the load; what was measured is kept.
    """
    (spec,) = pool.select([engine])
    launch = _profilable(spec)
    with open_journal(out, _identity(spec, launch, settings), batch_key) as journal:
        profile = Profile(out, spec.name, journal, settings)
        if profile.is_complete():
            output.info(f"{out} is complete: nothing to do.")
        else:
            with _traced(pool, spec, launch, out / "logs", output) as (running, log):
                profile.measure(running, log, output)
        result = profile.write()
    for shortcoming in _shortcomings(result):
        output.warn(shortcoming)
    return result


def _profilable(spec: EngineSpec) -> Launch:
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
    return spec.launch


def _identity(spec: EngineSpec, launch: Launch, settings: StepsSettings) -> dict[str, Any]:
    """What decides which batches a profile holds; it may go on with more budget or precision."""
    return {
        "engine": spec.name,
        "model": spec.model,
        **{f"launch.args.{name}": value for name, value in launch.args.items()},
        **{f"launch.env.{name}": value for name, value in launch.env.items()},
        "seed": settings.seed,
        "columns": list(COLUMNS),
        "tool_version": chimera_train.__version__,
    }


@contextmanager
def _traced(
    pool: Pool, spec: EngineSpec, launch: Launch, log_dir: Path, output: Output
) -> Iterator[tuple[RunningEngine, Path]]:
    """The engine, started with the tracer, and the file that the tracer writes."""
    with tempfile.TemporaryDirectory(prefix="chimera-steps-") as directory:
        log = Path(directory) / "steps.jsonl"
        # The engine's interpreter may be another one, without this package.
        package = Path(chimera_train.__file__).parent
        (Path(directory) / package.name).symlink_to(package)
        with running_pool(
            pool,
            log_dir=log_dir,
            output=output,
            only=[spec.name],
            extra_args={"scheduler_cls": _SCHEDULER},
            extra_env={FILE_VARIABLE: str(log), "PYTHONPATH": _python_path(launch, directory)},
        ) as (running,):
            yield running, log


def _python_path(launch: Launch, directory: str) -> str:
    own = launch.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
    return os.pathsep.join(filter(None, [directory, own]))


def _shortcomings(result: StepsResult) -> Iterator[str]:
    """What a user of the profile should know it lacks."""
    if not result.passes:
        yield "the budget was spent before the grid had been gone over once: raise --budget-s"
    for name, regime in result.regimes.items():
        if regime.stopped == "impossible":
            yield f"no {name} batch fits the engine: a model knows nothing about such steps"
        elif min(regime.n_prompt_lengths, regime.n_batch_sizes) < _ENOUGH_POINTS:
            yield (
                f"{name} batches had {regime.n_prompt_lengths} prompt lengths and"
                f" {regime.n_batch_sizes} sizes; a model that holds over context needs"
                f" {_ENOUGH_POINTS} of each"
            )

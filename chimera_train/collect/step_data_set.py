"""From measured batches to the files of a step profile, and what it covers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chimera_train.collect import provenance
from chimera_train.collect.journal import Journal
from chimera_train.collect.step_log import regime_of
from chimera_train.collect.step_plan import REGIME_OF, Kind
from chimera_train.collect.step_walk import Walk, steps_of
from chimera_train.errors import ConfigError
from chimera_train.files import write_json
from chimera_train.pool.schema import EngineInfo
from chimera_train.traces.schemas import SCHEMA_VERSION, SCHEMAS
from chimera_train.traces.store import write_table

__all__ = ["REGIMES", "Regime", "StepsResult", "write_profile"]

REGIMES = tuple(REGIME_OF.values())


@dataclass(frozen=True, slots=True)
class Regime:
    """What a profile holds of one regime.

    Attributes:
        steps: number of them, whichever batches they were seen in.
        batches: that were made for this regime.
        half_width_percent: half of the 95 % confidence interval of the time of a batch, in % of
            it; None where no batch was seen twice.
        stopped: why it got no more load: ``precise``, ``budget``, ``interrupted``, or
            ``impossible`` where no batch of it fits the engine.
        n_prompt_lengths, n_batch_sizes: how many different ones its batches had.
        n_seqs, step_tokens, context_tokens: least and most in one step; the context is the longest
            of a sequence in it.
        kv_blocks_used: most in one step.
    """

    steps: int
    batches: int
    half_width_percent: float | None
    stopped: str
    n_prompt_lengths: int
    n_batch_sizes: int
    n_seqs: tuple[int, int] | None
    step_tokens: tuple[int, int] | None
    context_tokens: tuple[int, int] | None
    kv_blocks_used: int


@dataclass(frozen=True, slots=True)
class StepsResult:
    """What a profile holds, by regime (see ``REGIMES``), and what the engine is.

    ``passes`` are those over the whole grid; ``is_complete`` is false where more would be measured.
    """

    engine: EngineInfo
    regimes: Mapping[str, Regime]
    passes: int
    is_complete: bool

    @property
    def steps(self) -> int:
        """All steps."""
        return sum(regime.steps for regime in self.regimes.values())


def write_profile(
    out: Path, engine: EngineInfo, journal: Journal, walk: Walk, settings: Mapping[str, Any]
) -> StepsResult:
    """Write the batches of ``journal``, and the provenance last.

    Args:
        out: directory of the data set.
        engine: what they were measured on.
        journal: the batches.
        walk: one that has not begun.
        settings: of the command.

    Raises:
        ConfigError: all has been measured, but no step of a regime was seen.
    """
    is_complete = next(walk.missing(), None) is None
    batches = [(entry["cell"], steps_of(entry)) for entry in journal.entries.values()]
    steps = [step for _, of_batch in batches for step in of_batch]
    result = StepsResult(
        engine,
        {REGIME_OF[kind]: _regime(kind, batches, steps, walk, is_complete) for kind in REGIME_OF},
        walk.passes,
        is_complete,
    )
    unseen = [
        name
        for name, regime in result.regimes.items()
        if not regime.steps and regime.stopped != "impossible"
    ]
    if is_complete and unseen:
        raise ConfigError(f"No {' and no '.join(unseen)} step was seen in time: raise --budget-s.")
    name = settings["engine"]
    write_table(out, "steps", [_row(name, number, step) for number, step in enumerate(steps)])
    write_json(out / "engine.json", engine.model_dump())
    write_json(
        out / provenance.FILE_NAME,
        {
            "schema_version": SCHEMA_VERSION,
            "status": "complete" if is_complete else "partial",
            "source": "tracer",
            "settings": settings,
            "counts": {
                "steps": len(steps),
                "batches": len(batches),
                "passes": walk.passes,
                **{name: regime.steps for name, regime in result.regimes.items()},
            },
            "regimes": {name: asdict(regime) for name, regime in result.regimes.items()},
            "runs": journal.runs,
            "ended_at": provenance.now(),
        },
    )
    return result


def _regime(
    kind: Kind,
    batches: Sequence[tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
    steps: Sequence[Mapping[str, Any]],
    walk: Walk,
    is_complete: bool,
) -> Regime:
    cells = [cell for cell, _ in batches if cell["kind"] == kind]
    mine = [step for step in steps if regime_of(step) == REGIME_OF[kind]]
    return Regime(
        steps=len(mine),
        batches=len(cells),
        half_width_percent=walk.precision.half_width_percent(kind),
        stopped=walk.stopped[kind] or ("budget" if is_complete else "interrupted"),
        n_prompt_lengths=len({cell["prompt_tokens"] for cell in cells}),
        n_batch_sizes=len({cell["n_seqs"] for cell in cells}),
        n_seqs=_range([step["n_seqs"] for step in mine]),
        step_tokens=_range([step["prefill_tokens"] + step["decode_tokens"] for step in mine]),
        context_tokens=_range(
            [max(step["max_prefill_ctx"], step["max_decode_ctx"]) for step in mine]
        ),
        kv_blocks_used=max((step["kv_blocks_used"] for step in mine), default=0),
    )


def _range(values: Sequence[int]) -> tuple[int, int] | None:
    return (min(values), max(values)) if values else None


def _row(engine: str, number: int, step: Mapping[str, Any]) -> dict[str, Any]:
    """A row of ``steps``; runs that share a profile each began to count at 0."""
    kept = {name: value for name, value in step.items() if name in SCHEMAS["steps"].names}
    return kept | {"engine": engine, "step": number}

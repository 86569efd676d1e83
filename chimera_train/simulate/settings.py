"""The file that ``simulate run`` and ``simulate sweep`` read."""

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, field_validator, model_validator

from chimera_train.config import Settings
from chimera_train.scheduling.policy import PolicySettings

__all__ = ["PoissonSettings", "RecordedSettings", "SweepSettings"]


class PoissonSettings(Settings):
    """``programs`` programs a cell, at each of ``rates_per_s`` (programs per second)."""

    kind: Literal["poisson"]
    rates_per_s: list[Annotated[FiniteFloat, Field(gt=0)]] = Field(min_length=1)
    programs: int = Field(gt=0)


class RecordedSettings(Settings):
    """Programs at given times, ms."""

    kind: Literal["recorded"]
    times_ms: list[FiniteFloat] = Field(min_length=1)

    @field_validator("times_ms")
    @classmethod
    def _in_order(cls, times_ms: list[float]) -> list[float]:
        if times_ms != sorted(times_ms):
            raise ValueError("the times must not decrease")
        return times_ms


def _expand(entry: Any) -> Any:
    """A list in place of a policy's setting stands for one policy with each of its values."""
    if not isinstance(entry, dict):
        return (entry,)
    listed = {key: value for key, value in entry.items() if isinstance(value, list)}
    return tuple(
        {**entry, **dict(zip(listed, values, strict=True))}
        for values in itertools.product(*listed.values())
    )


class SweepSettings(Settings):
    """A grid of pools × policies × rates, each cell run with ``seeds`` seeds. Paths are relative to
    the current directory.

    Attributes:
        traces: what is replayed.
        pools: pool files.
        latency: coefficient file of ``calibrate`` by engine name.
        length: directory of ``fit length``; needed by policies that use lengths.
        router: directory of ``fit router``; needed by policies that use confidences.
        policies: as in ``policy.json``; a list in place of a value (``tau: [0.1, 0.5]``) stands for
            one policy with each of its values.
        seeds: number of seeds: 0, 1, ….
        questions: ``holdout``, on which nothing was fitted, or ``all``.
        n_jobs: processes.
    """

    traces: Path
    pools: list[Path] = Field(min_length=1)
    latency: dict[str, Path]
    length: Path | None = None
    router: Path | None = None
    policies: list[Annotated[tuple[PolicySettings, ...], BeforeValidator(_expand)]] = Field(
        min_length=1
    )
    arrivals: Annotated[PoissonSettings | RecordedSettings, Field(discriminator="kind")]
    seeds: int = Field(gt=0)
    questions: Literal["holdout", "all"] = "holdout"
    n_jobs: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _has_what_its_policies_need(self) -> "SweepSettings":
        for policy in itertools.chain(*self.policies):
            if policy.needs_confidence and self.router is None:
                raise ValueError(
                    f"policy '{policy.kind}' needs 'router', a directory of 'fit router'"
                )
            if policy.needs_lengths and self.length is None:
                raise ValueError(
                    f"policy '{policy.kind}' with order '{policy.order}' needs 'length', a"
                    " directory of 'fit length'"
                )
        return self

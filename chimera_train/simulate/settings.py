"""The file that ``simulate run`` and ``simulate sweep`` read."""

import itertools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, field_validator, model_validator

from chimera_train.config import Settings
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.simulate.events import EngineEvents

__all__ = [
    "PLAIN",
    "AblationSettings",
    "ArrivalSettings",
    "ClosedLoopSettings",
    "DeterministicSettings",
    "MmppSettings",
    "OnTimeSettings",
    "PoissonSettings",
    "RecordedSettings",
    "SimulationSettings",
    "SweepSettings",
]

PLAIN = "plain"
"""What the predictors of a sweep itself are called beside those of its ablations."""

RatesPerS = Annotated[list[Annotated[FiniteFloat, Field(gt=0)]], Field(min_length=1)]


class _Drawn(Settings):
    """``programs`` programs a cell, at each of ``rates_per_s`` (mean, programs per second)."""

    rates_per_s: RatesPerS
    programs: int = Field(gt=0)


class PoissonSettings(_Drawn):
    """Exponential intervals."""

    kind: Literal["poisson"]


class DeterministicSettings(_Drawn):
    """Equal intervals."""

    kind: Literal["deterministic"]


class MmppSettings(_Drawn):
    """Bursts: a two-state Markov-modulated Poisson process (``arrivals.mmpp``).

    Attributes:
        rate_ratio: rate within bursts over rate between them.
        high_fraction: share of the time that is within bursts.
        correlation_time_s: time in which the correlation of the rate falls to 1/e; bursts last
            ``correlation_time_s / (1 - high_fraction)`` on average.
    """

    kind: Literal["mmpp"]
    rate_ratio: FiniteFloat = Field(ge=1)
    high_fraction: float = Field(default=0.2, gt=0, lt=1)
    correlation_time_s: FiniteFloat = Field(default=2.0, gt=0)


class RecordedSettings(Settings):
    """Programs at recorded times, the same for every seed; questions are drawn all the same.

    Attributes:
        file: a table with a column of arrival times (``recorded.read_arrival_times``), or
        times_ms: the times themselves, not decreasing.
        rates_per_s: stretch the times to each of these mean rates; null leaves them.
        programs: only the first so many; null is all.
    """

    kind: Literal["recorded"]
    file: Path | None = None
    times_ms: list[FiniteFloat] | None = Field(default=None, min_length=1)
    rates_per_s: RatesPerS | None = None
    programs: int | None = Field(default=None, gt=0)

    @field_validator("times_ms")
    @classmethod
    def _in_order(cls, times_ms: list[float] | None) -> list[float] | None:
        if times_ms is not None and times_ms != sorted(times_ms):
            raise ValueError("the times must not decrease")
        return times_ms

    @model_validator(mode="after")
    def _one_source(self) -> "RecordedSettings":
        if (self.file is None) == (self.times_ms is None):
            raise ValueError("give exactly one of 'file' and 'times_ms'")
        return self


class ClosedLoopSettings(Settings):
    """``users`` that each start their next program when they have thought about the last one.

    Attributes:
        users: how many; each has one program at a time.
        think_time_s: mean of the exponential time before each program.
        programs: of all users together.
    """

    kind: Literal["closed_loop"]
    users: int = Field(gt=0)
    think_time_s: FiniteFloat = Field(gt=0)
    programs: int = Field(gt=0)


ArrivalSettings = Annotated[
    PoissonSettings | DeterministicSettings | MmppSettings | RecordedSettings | ClosedLoopSettings,
    Field(discriminator="kind"),
]


def _expand(entry: Any) -> Any:
    """A list in place of a policy's setting stands for one policy with each of its values."""
    if not isinstance(entry, dict):
        return (entry,)
    listed = {key: value for key, value in entry.items() if isinstance(value, list)}
    return tuple(
        {**entry, **dict(zip(listed, values, strict=True))}
        for values in itertools.product(*listed.values())
    )


class OnTimeSettings(Settings):
    """SFS's measure: τ, the time to first token that is wanted, and λ, utility per micro-dollar."""

    ttft_target_ms: FiniteFloat = Field(gt=0)
    cost_weight: FiniteFloat = Field(default=5e-4, ge=0)


class SimulationSettings(Settings):
    """What every simulation needs beside pool and policy. Paths are relative to the current
    directory.

    Attributes:
        traces: what is replayed.
        latency: coefficient file of ``calibrate`` by engine name.
        length: directory of ``fit length``; needed by policies that use lengths. ``oracle`` knows
            what every program will do, for ablations.
        stage_length: directory of ``fit length --target stage``, or ``oracle``; needed by ``sjf``.
        ranker: directory of ``fit length --target rank``; needed by ``ltr``.
        router: directory of ``fit router``; needed by policies that use confidences. ``oracle``
            knows every model's mean score on the question.
        events: what befalls engines, at those pools that have them.
        questions: ``holdout``, on which nothing was fitted, or ``all``.
        on_time: what ``on_time_utility`` and ``on_time_share`` are measured against.
        n_jobs: processes on this machine.
    """

    traces: Path
    latency: dict[str, Path]
    length: Literal["oracle"] | Path | None = None
    stage_length: Literal["oracle"] | Path | None = None
    ranker: Path | None = None
    router: Literal["oracle"] | Path | None = None
    arrivals: ArrivalSettings
    events: EngineEvents = ()
    questions: Literal["holdout", "all"] = "holdout"
    on_time: OnTimeSettings | None = None
    n_jobs: int = Field(default=1, gt=0)


class AblationSettings(Settings):
    """Predictors in place of the sweep's own, which stay where nothing is given.

    Attributes:
        router, length: as in ``SimulationSettings``.
    """

    router: Literal["oracle"] | Path | None = None
    length: Literal["oracle"] | Path | None = None

    @model_validator(mode="after")
    def _replaces_something(self) -> "AblationSettings":
        if self.router is None and self.length is None:
            raise ValueError("an ablation replaces 'router', 'length' or both: give one")
        return self

    def concerns(self, policy: PolicySettings) -> bool:
        """Whether ``policy`` goes by what is replaced."""
        return (self.router is not None and policy.needs_confidence) or (
            self.length is not None and policy.needs_lengths
        )


class SweepSettings(SimulationSettings):
    """A grid of pools × policies × rates, each cell run with ``seeds`` seeds.

    Attributes:
        pools: pool files.
        policies: as in ``policy.json``; a list in place of a value (``tau: [0.1, 0.5]``) stands for
            one policy with each of its values.
        ablations: by name; those of the policies that go by what an ablation replaces are simulated
            with it too.
        seeds: number of seeds: 0, 1, ….
    """

    pools: list[Path] = Field(min_length=1)
    policies: list[Annotated[tuple[PolicySettings, ...], BeforeValidator(_expand)]] = Field(
        min_length=1
    )
    ablations: dict[str, AblationSettings] = {}
    seeds: int = Field(gt=0)

    @model_validator(mode="after")
    def _has_what_its_policies_need(self) -> "SweepSettings":
        for policy in itertools.chain(*self.policies):
            if policy.needs_confidence and self.router is None:
                raise ValueError(
                    f"policy '{policy.kind}' needs 'router', a directory of 'fit router'"
                )
            for needs, has, name, target in (
                (policy.needs_lengths, self.length, "length", ""),
                (policy.needs_stage_lengths, self.stage_length, "stage_length", " --target stage"),
                (policy.needs_ranks, self.ranker, "ranker", " --target rank"),
            ):
                if needs and has is None:
                    raise ValueError(
                        f"policy '{policy.kind}' with order '{policy.order}' needs '{name}', a"
                        f" directory of 'fit length{target}'"
                    )
        return self

    @model_validator(mode="after")
    def _ablates_what_its_policies_need(self) -> "SweepSettings":
        policies = list(itertools.chain(*self.policies))
        for name, ablation in self.ablations.items():
            if name == PLAIN:
                raise ValueError(
                    f"an ablation is called '{PLAIN}', as the sweep's own predictors are: rename it"
                )
            if not any(ablation.concerns(policy) for policy in policies):
                raise ValueError(
                    f"no policy goes by what ablation '{name}' replaces: leave it out or add one"
                )
        return self

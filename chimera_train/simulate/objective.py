"""The file that ``simulate tune`` reads: what is wanted of a pool, and how hard to look for it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, FiniteFloat, model_validator

from chimera_train.config import Settings, parse_settings
from chimera_train.scheduling.policy import PolicySettings
from chimera_train.simulate.metrics import FIGURES
from chimera_train.simulate.settings import (
    ClosedLoopSettings,
    RecordedSettings,
    SimulationSettings,
    SweepSettings,
)

__all__ = ["Bound", "ObjectiveSettings"]


def _known(figure: str) -> str:
    if figure not in FIGURES:
        raise ValueError(f"'{figure}' is no figure: choose one of {', '.join(FIGURES)}")
    return figure


Figure = Annotated[str, AfterValidator(_known)]


class Bound(Settings):
    """The least and the most that a figure's mean may be, in the figure's own unit."""

    min: FiniteFloat | None = None
    max: FiniteFloat | None = None

    @model_validator(mode="after")
    def _bounds_something(self) -> "Bound":
        if self.min is None and self.max is None:
            raise ValueError("give 'min', 'max' or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    def excess(self, value: float) -> float:
        """How far ``value`` is outside, as a share of the bound (if that is not 0); ≤ 0 inside."""
        ends = [(self.min, -1.0), (self.max, 1.0)]
        return max(
            sign * (value - end) / (abs(end) or 1.0) for end, sign in ends if end is not None
        )


class ObjectiveSettings(SimulationSettings):
    """One figure to improve on one pool at one rate, while others stay within bounds.

    Attributes:
        pool: the pool file.
        maximize: the figure that shall be large, or
        minimize: the one that shall be small.
        subject_to: bounds by figure.
        kinds: the kinds of policies to search; null is all that the inputs allow and the gateway
            can serve.
        trials: how many policies are tried, the baselines among them.
        search_seeds: each trial is the mean over the seeds 0, …, ``search_seeds`` − 1.
        validation_seeds: the best are judged on this many seeds after those.
        seed: of the search itself.
    """

    pool: Path
    maximize: Figure | None = None
    minimize: Figure | None = None
    subject_to: dict[Figure, Bound] = {}
    kinds: list[str] | None = Field(default=None, min_length=1)
    trials: int = Field(default=100, gt=0)
    search_seeds: int = Field(default=5, gt=0)
    validation_seeds: int = Field(default=10, gt=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_of_each(self) -> "ObjectiveSettings":
        if (self.maximize is None) == (self.minimize is None):
            raise ValueError("give exactly one of 'maximize' and 'minimize'")
        for name in self.figures:
            if name.startswith("on_time") and self.on_time is None:
                raise ValueError(f"'{name}' needs 'on_time' with 'ttft_target_ms'")
        if not isinstance(self.arrivals, ClosedLoopSettings):
            rates = self.arrivals.rates_per_s
            if rates is None and isinstance(self.arrivals, RecordedSettings):
                return self
            if rates is None or len(rates) != 1:
                raise ValueError("arrivals.rates_per_s must be a single rate: tune for one at once")
        return self

    @property
    def figure(self) -> str:
        """The figure to improve."""
        return self.maximize or self.minimize or ""

    @property
    def figures(self) -> list[str]:
        """The figure to improve, and those that are bounded."""
        return list(dict.fromkeys([self.figure, *self.subject_to]))

    def gain(self, figures: Mapping[str, Any]) -> float:
        """What is to be maximised, whichever way the objective is put."""
        return float(figures[self.figure]) * (-1.0 if self.maximize is None else 1.0)

    def excesses(self, figures: Mapping[str, Any]) -> dict[str, float]:
        """``Bound.excess`` of every bounded figure."""
        return {name: bound.excess(figures[name]) for name, bound in self.subject_to.items()}

    def violation(self, figures: Mapping[str, Any]) -> float:
        """The sum of what is outside; 0 if ``figures`` are within all bounds."""
        return sum(max(0.0, excess) for excess in self.excesses(figures).values())

    def sweep(self, policies: Sequence[PolicySettings]) -> SweepSettings:
        """The sweep of these policies on the same inputs.

        Raises:
            ConfigError: a policy needs a predictor that is not given.
        """
        shared = {name: getattr(self, name) for name in SimulationSettings.model_fields}
        own = {
            "pools": [self.pool],
            "policies": [policy.model_dump() for policy in policies],
            "seeds": self.search_seeds,
        }
        return parse_settings(shared | own, SweepSettings, "objective")

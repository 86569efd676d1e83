"""Which batch of a profiling plan comes next, and when a regime has had enough of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from chimera_train.collect.step_log import COLUMNS
from chimera_train.collect.step_plan import REGIME_OF, Cell, Kind, is_repeat
from chimera_train.collect.step_precision import Precision
from chimera_train.config import Settings

__all__ = ["StepsSettings", "Walk", "batch_key", "steps_of"]


class StepsSettings(Settings):
    """How to profile.

    Attributes:
        budget_s: most seconds of load, after the engine has started and warmed up; the runs of a
            profile that was interrupted share it.
        precision_percent: a regime gets no more load once the time of a batch is known to this
            (half the 95 % confidence interval, see :mod:`chimera_train.collect.step_precision`).
        seed: draws batch sizes, prompt lengths and their tokens.
    """

    budget_s: float = Field(60.0, gt=0)
    precision_percent: float = Field(2.0, gt=0)
    seed: int = Field(0, ge=0)


class Walk:
    """Goes over the grid, pass after pass, as far as the measured batches reach.

    The first pass, one between its points and the first repetition are made in any case that the
    budget allows; after every repetition the regimes that are known well enough are left out. What
    comes next follows from the plan and the batches alone, so a walk that is begun again goes the
    same way.

    Args:
        passes: of the plan.
        entries: the measured batches by key; what ``missing`` yields is to be added to it.
        settings: when to stop.

    Attributes:
        stopped: by kind of cell, why it gets no more load: ``precise``, or ``impossible`` where no
            batch of it fits the engine; None where it would get more.
        precision: how well times are known.
        passes: whole passes that were made.
        spent_s: seconds of load.
    """

    def __init__(
        self,
        passes: Iterable[Sequence[Cell]],
        entries: Mapping[str, Mapping[str, Any]],
        settings: StepsSettings,
    ) -> None:
        self._plan = passes
        self._entries = entries
        self._settings = settings
        self.stopped: dict[Kind, str | None] = dict.fromkeys(REGIME_OF)
        self.precision = Precision()
        self.passes = 0
        self.spent_s = float(sum(entry["load_s"] for entry in entries.values()))

    def missing(self) -> Iterator[tuple[str, Cell]]:
        """The batches to measure, with their keys; ends when all is known or the budget spent."""
        for number, cells in enumerate(self._plan):
            if number == 0:
                for kind in REGIME_OF.keys() - {cell.kind for cell in cells}:
                    self.stopped[kind] = "impossible"
            for index, cell in enumerate(cells):
                if self.stopped[cell.kind] is not None:
                    continue
                key = f"{number}/{index}"
                if key not in self._entries:
                    if self.spent_s >= self._settings.budget_s:
                        return
                    yield key, cell
                    self.spent_s += self._entries[key]["load_s"]
                if is_repeat(number):
                    self.precision.add(cell, steps_of(self._entries[key]))
            self.passes = number + 1
            if is_repeat(number):
                self._stop_precise()
            if all(self.stopped.values()):
                return

    def _stop_precise(self) -> None:
        for kind, reason in self.stopped.items():
            half_width = self.precision.half_width_percent(kind)
            is_known = half_width is not None and half_width <= self._settings.precision_percent
            if reason is None and is_known:
                self.stopped[kind] = "precise"


def batch_key(entry: Mapping[str, Any]) -> str:
    """What tells a measured batch from others: its pass and its place there.

    Raises:
        LookupError, TypeError: it is no measured batch.
    """
    Cell(**entry["cell"])
    if not entry["load_s"] > 0 or any(len(step) != len(COLUMNS) for step in entry["steps"]):
        raise LookupError("no measured batch")
    return str(entry["batch"])


def steps_of(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps of a measured batch, by column."""
    return [dict(zip(COLUMNS, step, strict=True)) for step in entry["steps"]]

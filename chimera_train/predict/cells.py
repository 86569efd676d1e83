"""What is known of a (workflow, stage, model) without looking at the request.

A cell holds the lengths that were seen in it, as a sample, and by how much its prediction intervals
must be moved so that they hold what they promise. Where a cell was never seen, its workflow stands
in, and where that was not either, everything of the model; for a model that was never seen, the
cells, workflows and everything of all models together.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, FiniteFloat, TypeAdapter, ValidationError

from chimera_train.config import Settings
from chimera_train.errors import DataError
from chimera_train.files import read_json, write_json

__all__ = ["SAMPLE", "Cell", "Cells", "Level"]

#: Lengths that stand for those of a cell: its quantiles 0, 1, … 100 %.
SAMPLE = 101

Level = Literal["cell", "workflow", "global"]

_FILE = "cells.json"


class Cell(Settings):
    """The lengths of one (workflow, stage, model); None: of all of them.

    Attributes:
        rows: stages that were seen.
        tokens: ``SAMPLE`` quantiles of their targets, tokens, ascending.
        low, high: what is added to the logarithm of the predicted 10 and 90 % quantiles, by
            split conformal calibration.
    """

    model: str | None
    workflow: str | None
    stage: str | None
    rows: int = Field(gt=0)
    tokens: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        min_length=SAMPLE, max_length=SAMPLE
    )
    low: FiniteFloat = 0.0
    high: FiniteFloat = 0.0

    def quantiles(
        self, quantiles: Sequence[float], above: float = -np.inf
    ) -> npt.NDArray[np.float64]:
        """Quantiles of the lengths that exceed ``above``; NaN where none does."""
        first = bisect_right(self.tokens, above)
        n = len(self.tokens) - first
        if n == 0:
            return np.full(len(quantiles), np.nan)
        # As np.quantile does, which takes ten times as long to begin.
        return np.interp(np.asarray(quantiles) * (n - 1), np.arange(n), self.tokens[first:])


class Cells:
    """Cells by what they are of.

    Raises:
        DataError: there is none of everything, or two of the same.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = tuple(cells)
        self._by_key = {(cell.model, cell.workflow, cell.stage): cell for cell in self.cells}
        if (None, None, None) not in self._by_key or len(self._by_key) < len(self.cells):
            raise DataError(f"{_FILE} lacks the cell of everything, or has one twice: fit again.")

    def find(self, model: str, workflow: str, stage: str) -> tuple[Cell, Level]:
        """The narrowest cell that was seen, and how narrow it is."""
        name = model if (model, None, None) in self._by_key else None
        keys: tuple[tuple[Level, tuple[str | None, str | None, str | None]], ...] = (
            ("cell", (name, workflow, stage)),
            ("workflow", (name, workflow, None)),
        )
        for level, key in keys:
            if key in self._by_key:
                return self._by_key[key], level
        return self._by_key[name, None, None], "global"

    def save(self, directory: Path) -> list[str]:
        """Write the cells into ``directory``; the names of the files written."""
        write_json(directory / _FILE, [cell.model_dump() for cell in self.cells])
        return [_FILE]

    @classmethod
    def load(cls, directory: Path) -> "Cells":
        """Read what :meth:`save` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            return cls(TypeAdapter(list[Cell]).validate_python(read_json(directory / _FILE)))
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise DataError(f"{directory / _FILE} is damaged ({reason}): fit again.") from error

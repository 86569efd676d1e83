"""Which cell stands for a request, its quantiles, and what a damaged file is refused with."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.predict.cells import SAMPLE, Cell, Cells

Key = tuple[str | None, str | None, str | None]

SEEN: list[Key] = [
    (None, None, None),
    (None, "math", None),
    (None, "math", "solve"),
    (None, "code", None),
    ("small", None, None),
    ("small", "math", None),
    ("small", "math", "solve"),
]


def cell(key: Key, tokens: list[float] | None = None, **values: Any) -> Cell:
    model, workflow, stage = key
    given = tokens or [float(i) for i in range(SAMPLE)]
    return Cell(model=model, workflow=workflow, stage=stage, rows=3, tokens=given, **values)


CELLS = Cells(cell(key) for key in SEEN)


@pytest.mark.parametrize(
    ("asked", "found", "level"),
    [
        (("small", "math", "solve"), ("small", "math", "solve"), "cell"),
        (("small", "math", "verify"), ("small", "math", None), "workflow"),
        # Another model saw this workflow, but a model's own lengths tell more than a name.
        (("small", "code", "solve"), ("small", None, None), "global"),
        (("small", "", ""), ("small", None, None), "global"),
        (("large", "math", "solve"), (None, "math", "solve"), "cell"),
        (("large", "code", "solve"), (None, "code", None), "workflow"),
        (("large", "vote", "solve"), (None, None, None), "global"),
    ],
)
def test_the_narrowest_cell_that_was_seen(asked: tuple[str, str, str], found: Key, level: str):
    actual, actual_level = CELLS.find(*asked)
    assert ((actual.model, actual.workflow, actual.stage), actual_level) == (found, level)


def test_quantiles_are_those_of_the_lengths_above_a_bound() -> None:
    of_all = cell(SEEN[0])  # 0, 1, … 100
    np.testing.assert_allclose(of_all.quantiles([0.1, 0.5, 0.9]), [10, 50, 90])
    np.testing.assert_allclose(of_all.quantiles([0, 0.5, 1], above=49), [50, 75, 100])
    np.testing.assert_allclose(of_all.quantiles([0.5], above=99), [100])
    assert np.isnan(of_all.quantiles([0.1, 0.5], above=100)).all()


def test_survive_a_round_trip(tmp_path: Path) -> None:
    cells = Cells([*CELLS.cells, cell(("large", None, None), low=-0.25, high=0.5)])
    assert cells.save(tmp_path) == ["cells.json"]
    assert Cells.load(tmp_path).cells == cells.cells


@pytest.mark.parametrize(
    ("keys", "message"),
    [(SEEN[1:], "lacks the cell of everything"), ([*SEEN, SEEN[1]], "has one twice")],
)
def test_refuses_cells_that_leave_a_gap_or_are_ambiguous(keys: list[Key], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Cells(cell(key) for key in keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1.0]}, "damaged .*at least 101 items"),
        ({"tokens": [float("nan")] * SAMPLE}, "damaged"),
        ({"tokens": [-1.0] * SAMPLE}, "damaged .*greater than or equal to 0"),
        ({"low": float("inf")}, "damaged .*finite"),
        ({"rows": 0}, "damaged .*greater than 0"),
        ({"extra": 1}, "damaged .*not permitted"),
        (None, "cells.json is damaged"),
    ],
)
def test_refuses_a_damaged_file(tmp_path: Path, change: Any, message: str) -> None:
    values = [{**cell(SEEN[0]).model_dump(), **change}] if change else {"cells": []}
    (tmp_path / "cells.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=message):
        Cells.load(tmp_path)


def test_refuses_a_file_that_is_missing_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Cells.load(tmp_path)
    (tmp_path / "cells.json").write_text("[")
    with pytest.raises(DataError, match="not valid JSON"):
        Cells.load(tmp_path)

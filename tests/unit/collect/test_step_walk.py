"""The way over the grid: when a regime has had enough, the budget, and going on after a stop."""

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest

from chimera_train.collect.step_log import COLUMNS
from chimera_train.collect.step_plan import Cell
from chimera_train.collect.step_walk import StepsSettings, Walk

GRID = [Cell(kind, n, 64, 1, 0) for n in range(1, 9) for kind in ("decode", "prefill")]
DRAWN = [Cell(kind, n, 32, 1, 0) for n in range(1, 9) for kind in ("decode", "prefill")]
NOISE = {"decode": 0.001, "prefill": 0.08}


def entry(key: str, cell: Cell, rng: np.random.Generator) -> dict[str, Any]:
    values = dict.fromkeys(COLUMNS, 0) | {
        "decode_tokens": cell.n_seqs * (cell.kind == "decode"),
        "prefill_tokens": cell.n_seqs * (cell.kind == "prefill"),
        "step_ms": 5.0 * np.exp(NOISE[cell.kind] * rng.normal()),
    }
    return {"batch": key, "load_s": 1.0, "steps": [[values[name] for name in COLUMNS]]}


def walk(entries: dict[str, Any], passes: int = 99, **settings: Any) -> Walk:
    plan = [GRID, DRAWN] * passes
    return Walk(
        plan, entries, StepsSettings(**{"budget_s": 1e6, "precision_percent": 2, **settings})
    )


def go(one: Walk, entries: dict[str, Any], most: int = 10**6) -> list[str]:
    rng = np.random.default_rng(len(entries))
    keys = []
    for key, cell in islice(one.missing(), most):
        entries[key] = entry(key, cell, rng)
        keys.append(key)
    return keys


def test_a_regime_that_is_known_gets_no_more_load_while_the_other_goes_on() -> None:
    entries: dict[str, Any] = {}
    one = walk(entries)
    go(one, entries)
    assert one.stopped == {"decode": "precise", "prefill": "precise", "mixed": "impossible"}
    for kind in ("decode", "prefill"):
        half_width = one.precision.half_width_percent(kind)
        assert half_width is not None
        assert half_width <= 2
    passes = {
        kind: {
            int(key.split("/")[0]) for key in entries if GRID[int(key.split("/")[1])].kind == kind
        }
        for kind in ("decode", "prefill")
    }
    # The grid, the sizes between its points, and the grid again: at least.
    assert passes["decode"] == {0, 1, 2}
    assert len(passes["prefill"]) > 10
    assert one.passes == len(passes["prefill"])


def test_every_point_is_visited_before_anything_stops() -> None:
    entries: dict[str, Any] = {}
    go(walk(entries, precision_percent=1e6), entries)
    counts = Counter(key.split("/")[0] for key in entries)
    assert counts == {"0": len(GRID), "1": len(DRAWN), "2": len(GRID)}


@pytest.mark.parametrize(("budget_s", "passes"), [(5, 0), (16, 1), (40, 2)])
def test_the_budget_is_the_upper_bound(budget_s: float, passes: int) -> None:
    entries: dict[str, Any] = {}
    one = walk(entries, budget_s=budget_s)
    assert len(go(one, entries)) == budget_s
    assert one.passes == passes
    assert one.spent_s == budget_s
    assert one.stopped == {"decode": None, "prefill": None, "mixed": "impossible"}


def test_a_walk_that_was_cut_short_goes_on_as_it_would_have() -> None:
    entries: dict[str, Any] = {}
    first = go(walk(entries), entries, most=21)
    assert first == [f"0/{i}" for i in range(16)] + [f"1/{i}" for i in range(5)]
    rest = go(walk(entries, budget_s=30), entries)
    assert rest[0] == "1/5"
    assert len(first) + len(rest) == 30
    # It takes what is there into account, and a tighter precision or a larger budget goes on.
    assert go(walk(entries, budget_s=30), entries) == []
    assert go(walk(entries, budget_s=31), entries) == ["1/14"]
    go(walk(entries), entries)
    assert go(walk(entries), entries) == []
    more = go(walk(entries, precision_percent=1.5), entries)
    assert {GRID[int(key.split("/")[1])].kind for key in more} == {"prefill"}

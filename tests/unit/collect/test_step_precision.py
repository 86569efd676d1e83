"""The confidence interval of a batch's time: against its definition, and whatever stalls."""

import math

import numpy as np
import pytest
from scipy.stats import t

from chimera_train.collect.step_plan import Cell
from chimera_train.collect.step_precision import Precision

CELLS = [Cell("decode", n_seqs, 64, 12, 0) for n_seqs in range(1, 41)]


def step(cell: Cell, ms: float, **fields: int) -> dict[str, float]:
    return {
        "prefill_tokens": 0,
        "decode_tokens": cell.n_seqs,
        "n_prefill": 0,
        "max_prefill_ctx": 0,
        "step_ms": ms,
        **fields,
    }


def visited(visits: int, sigma: float, seed: int = 0, stalls: float = 0.0) -> Precision:
    """Every cell ``visits`` times; the pace of each visit is drawn, and of some it is a tenth."""
    rng = np.random.default_rng(seed)
    precision = Precision()
    for _ in range(visits):
        for cell in CELLS:
            pace = math.exp(sigma * rng.normal()) * (10 if rng.random() < stalls else 1)
            precision.add(cell, [step(cell, 5 * cell.n_seqs * pace)] * 11)
    return precision


def test_two_visits_by_hand() -> None:
    precision = Precision()
    for ms in (10.0, 11.0):
        precision.add(CELLS[0], [step(CELLS[0], ms)])
    sigma = 1.4826 * math.log(1.1) / 2 * math.sqrt(2)
    expected = 100 * math.expm1(t.ppf(0.975, 1) * sigma / math.sqrt(2))
    assert precision.half_width_percent("decode") == pytest.approx(expected)


@pytest.mark.parametrize("visits", [2, 4, 16])
def test_it_is_that_of_normal_noise(visits: int) -> None:
    sigma = 0.03
    found = [visited(visits, sigma, seed).half_width_percent("decode") for seed in range(30)]
    freedom = len(CELLS) * (visits - 1)
    expected = 100 * math.expm1(t.ppf(0.975, freedom) * sigma / math.sqrt(visits))
    assert np.median(found) == pytest.approx(expected, rel=0.1)


def test_stalled_visits_do_not_widen_it_much() -> None:
    calm, stalled = (visited(4, 0.03, stalls=share) for share in (0.0, 0.04))
    assert stalled.half_width_percent("decode") < 1.5 * calm.half_width_percent("decode")


def test_a_stall_within_a_visit_does_not_touch_it() -> None:
    precision = Precision()
    for visit in range(3):
        for cell in CELLS:
            times = [5.0] * 11
            times[visit] = 500.0
            precision.add(cell, [step(cell, ms) for ms in times])
    assert precision.half_width_percent("decode") == 0


def test_nothing_is_known_before_a_batch_is_seen_twice() -> None:
    precision = visited(1, 0.03)
    assert precision.half_width_percent("decode") is None
    assert precision.half_width_percent("mixed") is None
    # Other steps than those that the cell is there for, and another batch of the same cell.
    precision.add(CELLS[0], [step(CELLS[0], 9.0, prefill_tokens=5), step(CELLS[0], 9.0)])
    assert precision.half_width_percent("decode") is not None
    other = visited(1, 0.03)
    other.add(CELLS[1], [step(CELLS[1], 9.0, decode_tokens=1)])
    assert other.half_width_percent("decode") is None

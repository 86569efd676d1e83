"""Times that cannot be milliseconds are refused, whatever the engine, and real ones never."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.latency.plausible import implausible
from chimera_train.latency.steps import read_steps

Make = Callable[..., pd.DataFrame]
# The quickest decode step, ms: a pocket model on one core, a small one on an H200, 8B on an RTX
# 4090, 70B on four A100, 70B on a CPU.
ENGINES = (2.5, 0.6, 16.6, 33.0, 2800.0)


def scaled(steps_frame: Make, quickest_ms: float, noise: float = 0.1) -> pd.DataFrame:
    frame = steps_frame(400, noise=noise)
    return frame.assign(step_ms=frame["step_ms"] * quickest_ms / frame["step_ms"].min())


@pytest.mark.parametrize("quickest_ms", ENGINES)
def test_real_engines_are_plausible(steps_frame: Make, quickest_ms: float) -> None:
    frame = scaled(steps_frame, quickest_ms)
    assert implausible(frame) is None
    stalled = np.arange(len(frame)) % 20 == 0
    assert implausible(frame.assign(step_ms=frame["step_ms"] + 5000 * stalled)) is None


def in_seconds(frame: pd.DataFrame, part: str) -> pd.DataFrame:
    prefill = frame["prefill_tokens"] > 0
    of = {
        "all": prefill | True,
        "prefill": prefill,
        "decode": ~prefill,
        "every tenth": frame.index % 10 == 0,
    }
    return frame.assign(step_ms=np.where(of[part], frame["step_ms"] / 1000, frame["step_ms"]))


@pytest.mark.parametrize(
    ("quickest_ms", "part"),
    [
        *((ms, part) for ms in ENGINES for part in ("prefill", "decode", "every tenth")),
        *((ms, "all") for ms in ENGINES if ms < 1000),
    ],
)
def test_seconds_are_not_milliseconds(steps_frame: Make, quickest_ms: float, part: str) -> None:
    mixed = in_seconds(scaled(steps_frame, quickest_ms), part)
    assert "seconds?" in str(implausible(mixed))


def test_the_seconds_of_a_slow_engine_could_be_milliseconds_of_a_fast_one(
    steps_frame: Make,
) -> None:
    assert implausible(in_seconds(scaled(steps_frame, 2800.0), "all")) is None


def test_microseconds_are_not_milliseconds(steps_frame: Make) -> None:
    frame = scaled(steps_frame, 16_600.0)
    assert "are they microseconds?" in str(implausible(frame))


def test_the_times_of_rows_that_stand_for_several_steps_are_divided(steps_frame: Make) -> None:
    frame = scaled(steps_frame, 16.6)
    runs = frame.assign(n_steps=1000, step_ms=frame["step_ms"] * 1000)
    runs[["prefill_tokens", "decode_tokens"]] *= 1000
    assert implausible(runs) is None
    assert implausible(runs.assign(step_ms=frame["step_ms"])) is not None


def test_reading_refuses_them(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(100)
    frame.assign(step_ms=frame["step_ms"] / 1000).to_csv(tmp_path / "s.csv", index=False)
    with pytest.raises(
        DataError, match=r"s\.csv has steps whose times are not milliseconds: a ten"
    ):
        read_steps(tmp_path / "s.csv")


def test_public_steps_are_plausible(public_steps: Path) -> None:
    assert implausible(read_steps(public_steps).frame) is None

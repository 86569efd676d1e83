"""Rows of decision logs with known figures."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from chimera_train.runtime.decisions import DecisionLog
from chimera_train.runtime.settings import GatewaySettings

START = datetime(2026, 1, 2, tzinfo=UTC)


def request(program: str, at_ms: float, predicted: float, realised: int, **other: Any) -> dict:
    return {
        "time": START + timedelta(milliseconds=at_ms),
        "program_id": program,
        "workflow": "math",
        "stage": "solve",
        "engine": "one",
        "model": "small",
        "predicted_tokens": predicted,
        "prompt_tokens": 50,
        "realised_tokens": realised,
        "e2e_ms": 100.0,
        "queue_ms": 1.0,
        "overhead_ms": 1.0,
        "fallbacks": 0,
        **other,
    }


def write_log(directory: Path, rows: Sequence[dict], version: str = "1") -> Path:
    about = {"bundle": "demo", "bundle_version": version}
    with DecisionLog(directory, about, GatewaySettings(decision_rows=200)) as log:
        for row in rows:
            log.add(row)
    return directory


def draw_rows(seed: int, n: int, *, scale: float = 1.0, stages: float = 0.5) -> list[dict]:
    """Programs of one or two requests, whose lengths the predictions know but for noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(n):
        tokens = np.rint(rng.lognormal(4, 0.5, size=2) * scale).astype(int)
        two = rng.random() < stages
        totals = (tokens.sum(), tokens[1]) if two else (tokens[0],)
        for stage, total in enumerate(totals):
            centre = total / scale * rng.lognormal(0, 0.2)
            rows.append(
                request(
                    f"p{index}",
                    1000 * index + 200 * stage,
                    centre,
                    int(tokens[stage]),
                    stage=("solve", "verify")[stage],
                    predicted_low_tokens=centre / np.exp(0.2563),
                    predicted_high_tokens=centre * np.exp(0.2563),
                    prompt_tokens=int(rng.integers(20, 80) * scale),
                )
            )
    return rows

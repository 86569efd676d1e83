"""Every figure of a decision log, and what follows from them."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from chimera_train.errors import DataError
from chimera_train.live.drift import compared, outside_shares
from chimera_train.live.figures import (
    length_figures,
    length_rows,
    outcome_figures,
    outcome_rows,
    service_figures,
)
from chimera_train.live.settings import EvaluateLiveSettings
from chimera_train.live.training import Training
from chimera_train.live.verdict import checks, verdict
from chimera_train.traces.store import read_any

__all__ = ["Evaluated", "evaluate_live", "read_outcomes"]


class Evaluated(NamedTuple):
    """What ``evaluate live`` shows.

    Attributes:
        figures: as JSON values.
        lengths: the rows of ``length_rows`` that have a prediction.
        outcomes: those of ``outcome_rows``.
    """

    figures: dict[str, Any]
    lengths: pd.DataFrame
    outcomes: pd.DataFrame


def evaluate_live(
    log: pd.DataFrame,
    training: Training,
    scores: pd.Series | None,
    settings: EvaluateLiveSettings,
) -> Evaluated:
    """Judge the rows of a decision log.

    Figures: ``verdict``; ``checks``, each figure against its limit; ``requests``, ``programs`` and
    ``programs_completed``; ``from``, ``to`` and ``bundles`` of the log; ``length``, ``service`` and
    ``router`` (``live.figures``), ``drift`` and ``outside`` (``live.drift``).

    Args:
        log: of ``read_decisions``.
        training: the data to compare with.
        scores: outcomes, 0..1, by program_id.
        settings: the limits.
    """
    rows = length_rows(log)
    outcomes = outcome_rows(log, pd.Series(dtype="float64") if scores is None else scores)
    figures: dict[str, Any] = {
        "requests": len(log),
        "programs": int(log["program_id"].nunique()),
        "programs_completed": int(rows["program_id"].nunique()),
        "from": log["time"].iloc[0].isoformat(),
        "to": log["time"].iloc[-1].isoformat(),
        "bundles": sorted(set(log["bundle"])),
        "length": length_figures(rows, settings.seed),
        "service": service_figures(log),
        "router": outcome_figures(outcomes),
        "drift": None
        if training.rows is None or rows.empty
        else compared(rows, training.rows, routed=bool(log["q"].notna().any())),
        "outside": {} if rows.empty else outside_shares(rows, training),
    }
    found = checks(figures, training, settings)
    state = verdict(found, figures["programs_completed"], settings)
    return Evaluated(
        {"verdict": state, "checks": [asdict(check) for check in found], **figures},
        rows[rows["predicted"].notna()],
        outcomes,
    )


def read_outcomes(path: Path) -> pd.Series:
    """Scores by program_id, of a table (``.jsonl``, ``.csv``, ``.parquet``) of the two.

    The last row of a program counts.

    Raises:
        ConfigError: another kind of file.
        DataError: the file cannot be read, lacks a column, or a score is not between 0 and 1.
    """
    table = read_any(path)
    missing = [name for name in ("program_id", "score") if name not in table]
    if missing:
        raise DataError(f"{path} lacks the column '{missing[0]}': it needs program_id and score.")
    scores = pd.to_numeric(table["score"], errors="coerce").astype("float64")
    wrong = table[~scores.between(0, 1)]
    if not wrong.empty:
        raise DataError(
            f"{path}: the score {wrong['score'].iloc[0]} of program"
            f" '{wrong['program_id'].iloc[0]}' is not between 0 and 1."
        )
    return pd.Series(scores.to_numpy(), table["program_id"].astype(str)).groupby(level=0).last()

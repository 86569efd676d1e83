"""Reading measured engine steps, and refusing those that a model should not be fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from chimera_train.errors import ConfigError, DataError
from chimera_train.latency.plausible import implausible
from chimera_train.latency.sums import COUNTS_OF_STEPS, complete
from chimera_train.traces.store import read_any, read_table

__all__ = ["ORIGINS", "Steps", "check_steps", "read_steps"]

ORIGINS = ("measured", "composed", "extrapolated")
"""Where a step time comes from: a clock; times of layers that were added up; or a composition that
goes beyond what was measured of a layer."""

_REQUIRED = ("prefill_tokens", "decode_tokens", "step_ms")
_LONGEST = ("max_prefill_ctx", "max_decode_ctx")
_OPTIONAL = ("decode_ctx_tokens", "prefill_attn", *_LONGEST)


@dataclass(frozen=True, slots=True)
class Steps:
    """Valid steps of one engine.

    Attributes:
        frame: one row a step, float columns: prefill_tokens, decode_tokens, step_ms and whichever
            of decode_ctx_tokens, prefill_attn, max_prefill_ctx and max_decode_ctx were measured.
            Where a row stands for several steps, the counts and the time are sums over them, and
            the columns of ``latency.sums.COUNTS_OF_STEPS`` say of how many.
        source: the file they were read from.
        origins: number of rows of each of ``ORIGINS``.
    """

    frame: pd.DataFrame
    source: Path
    origins: Mapping[str, int] = field(default_factory=dict)

    def require(self, columns: Sequence[str], purpose: str) -> None:
        """Raise ``DataError`` if a column that ``purpose`` needs was not measured."""
        missing = [name for name in columns if name not in self.frame]
        if missing:
            raise DataError(
                f"{self.source} lacks the column(s) {', '.join(missing)}, which {purpose} needs."
            )


def read_steps(
    source: Path, *, engine_name: str | None = None, max_context: int | None = None
) -> Steps:
    """Read steps and check every row.

    Args:
        source: a directory of ``collect steps`` or the ``steps.parquet`` in it, or a ``.csv`` or
            ``.csv.gz`` file with the columns of the steps table, of which prefill_tokens,
            decode_tokens and step_ms are required.
        engine_name: keep the steps of this engine; needed only where there are several.
        max_context: keep steps in which no sequence has a longer context, in tokens.

    Raises:
        ConfigError: the kind of file is not supported.
        DataError: the file is missing, unreadable or lacks a column, it has steps of several
            engines and ``engine_name`` does not pick one, rows are unusable (how many and why
            is named), or their times cannot be milliseconds.
    """
    if not source.exists():
        raise DataError(f"{source} does not exist.")
    if source.is_dir():
        source = source / "steps.parquet"
    return check_steps(_pick_engine(source, _read(source), engine_name), source, max_context)


def check_steps(raw: pd.DataFrame, source: Path, max_context: int | None = None) -> Steps:
    """The steps in a table with columns of the steps table, as ``read_steps``.

    Raises:
        DataError: a column is missing, rows are unusable, or their times cannot be milliseconds.
    """
    missing = [name for name in _REQUIRED if name not in raw]
    if missing:
        raise DataError(f"{source} lacks the column(s) {', '.join(missing)}.")
    measured = [name for name in _OPTIONAL if name in raw and raw[name].notna().any()]
    columns = [*_REQUIRED, *measured, *(name for name in COUNTS_OF_STEPS if name in raw)]
    frame = complete(raw[columns].apply(pd.to_numeric, errors="coerce").astype(float))
    problems = _problems(frame)
    origin = _origins(source, raw)
    # Without a step number, two rows are taken for the same step when they agree in everything.
    identity = [name for name in ("engine", "step") if name in raw] if "step" in raw else None
    repeated = int(raw.duplicated(subset=identity).sum())
    if repeated:
        problems.append(
            f"{repeated} repeat an earlier row"
            + ("" if identity else " (a column 'step' would tell equal measurements apart)")
        )
    if problems:
        raise DataError(f"{source} has unusable rows: {'; '.join(problems)}.")
    if max_context is not None:
        Steps(frame, source).require(_LONGEST, "--max-context")
        kept = (frame[list(_LONGEST)] <= max_context).all(axis=1)
        frame, origin = frame[kept], origin[kept]
    # Of an empty table, ``check_enough`` says that it is.
    doubt = implausible(frame) if len(frame) else None
    if doubt is not None:
        raise DataError(f"{source} has steps whose times are not milliseconds: {doubt}")
    return Steps(frame.reset_index(drop=True), source, dict(Counter(origin)))


def _read(source: Path) -> pd.DataFrame:
    if source.name == "steps.parquet":
        return read_table(source.parent, "steps")
    if not source.name.endswith((".csv", ".csv.gz")):
        raise ConfigError(
            f"{source} is not a source of steps: give a directory of 'chimera-train collect steps',"
            " its steps.parquet, or a .csv or .csv.gz file."
        )
    return read_any(source)


def _pick_engine(source: Path, raw: pd.DataFrame, engine_name: str | None) -> pd.DataFrame:
    names = sorted(raw["engine"].dropna().astype(str).unique()) if "engine" in raw else []
    if engine_name is None:
        if len(names) > 1:
            raise DataError(
                f"{source} has steps of several engines ({', '.join(names)}): pick one with"
                " --engine-name."
            )
        return raw
    if engine_name not in names:
        raise DataError(
            f"{source} has no steps of engine '{engine_name}', only of"
            f" {', '.join(names) or 'unnamed ones'}."
        )
    return raw[raw["engine"] == engine_name]


def _origins(source: Path, raw: pd.DataFrame) -> pd.Series:
    """Every row's entry of ``ORIGINS``."""
    if "origin" not in raw:
        return pd.Series("measured", index=raw.index)
    origin = raw["origin"].fillna("measured").astype(str)
    unknown = sorted(set(origin) - set(ORIGINS))
    if unknown:
        raise DataError(
            f"{source} has the origin(s) {', '.join(unknown)}: use {', '.join(ORIGINS)}."
        )
    return origin


def _problems(frame: pd.DataFrame) -> list[str]:
    """What is wrong with which number of rows; the reasons are independent of each other."""
    counts = frame.drop(columns="step_ms")
    checks = {
        f"{name} is empty, infinite or not a number": ~np.isfinite(frame[name])
        for name in frame.columns
    }
    checks["step_ms is not above 0"] = frame["step_ms"] <= 0
    checks["a count is negative"] = (counts < 0).any(axis=1)
    checks["the batch is empty"] = (frame["prefill_tokens"] + frame["decode_tokens"]) == 0
    # These two hold for every batch by definition, and fail when columns have been mixed up.
    for feature, tokens in (
        ("prefill_attn", "prefill_tokens"),
        ("decode_ctx_tokens", "decode_tokens"),
    ):
        if feature in frame:
            checks[f"{feature} is below {tokens}, or not 0 without them"] = (
                frame[feature] < frame[tokens]
            ) | ((frame[tokens] == 0) & (frame[feature] > 0))
    if "n_steps" in frame:
        parts = frame[["n_prefill_steps", "n_decode_steps", "n_batched_steps"]]
        checks["n_steps is below 1, or below a count of steps beside it"] = (
            frame["n_steps"] < 1
        ) | parts.gt(frame["n_steps"], axis=0).any(axis=1)
    return [f"in {int(bad.sum())} {reason}" for reason, bad in checks.items() if bad.any()]

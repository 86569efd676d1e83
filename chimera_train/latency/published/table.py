"""Steps out of a table of latencies by batch and length."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.errors import ConfigError, DataError
from chimera_train.latency.published.layouts import LAYOUTS, Layout, recognise
from chimera_train.latency.published.rows import Published
from chimera_train.latency.published.runs import Batch, Limits, batch_steps, fit_kv_tokens
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.engine_state import max_request_tokens

__all__ = ["Runs", "batch_rows", "fitted_limits", "read_latency_table", "read_runs"]

# Two columns that say the same thing, such as a total time and its parts, agree to this share.
_TOLERANCE = 0.1
# No engine was ever given more at once, and the steps of each are followed one by one.
_MOST_REQUESTS = 65_536


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows of a table, all of one engine.

    Attributes:
        frame: the rows that are used, with their columns as they were published.
        layout: what the columns are.
        engine: value of each column that identifies the engine.
        left_out: how many rows are not used, by reason.
    """

    frame: pd.DataFrame
    layout: Layout
    engine: Mapping[str, str]
    left_out: Mapping[str, int]

    def where(self, rows: pd.Series) -> Runs:
        """Those of the rows for which ``rows`` is true."""
        return dataclasses.replace(self, frame=self.frame[rows])

    def batches(self) -> list[Batch]:
        """The batch of every row."""
        columns = (self.layout.batch, self.layout.prompt, self.layout.output)
        return [Batch(*map(int, row)) for row in self.frame[list(columns)].to_numpy()]


def read_latency_table(
    source: Path, where: Mapping[str, str], engine: EngineInfo | None
) -> Published:
    """Steps of the engine that ``where`` picks from a table of one of ``LAYOUTS``.

    A time until the first token is that of the steps that compute the prompts, and a time per
    output token that of a step at the mean context. A total time is that of all steps of a run:
    those that ``engine``, or an engine with a KV cache of the size that explains the times best,
    takes for the batch.

    Raises:
        DataError: the table is unreadable or has other columns, a value is not a number above 0,
            no row is left, rows are of several engines, or a request does not fit ``engine``.
        ConfigError: ``where`` names a column that the table lacks.
    """
    runs = read_runs(source, where)
    facts: dict[str, Any] = {"columns": _columns(runs.layout), "engine": dict(runs.engine)}
    fitted: int | None = None
    if engine is not None:
        _require_servable(source, runs, engine)
        limits = Limits.of(engine)
    else:
        limits = fitted_limits(runs)
        fitted = None if limits == Limits() else limits.kv_tokens
        facts["kv_tokens"] = {"value": fitted, "origin": "fitted"}
    return Published(batch_rows(runs, limits), runs.left_out, facts, fitted)


def fitted_limits(runs: Runs) -> Limits:
    """The limits of an engine that is not known: its KV cache where times of whole runs show it."""
    if runs.layout.between is not None:
        return Limits()
    fitted = fit_kv_tokens(runs.batches(), _ms(runs, runs.layout.total))
    return Limits() if fitted is None else Limits(fitted)


def read_runs(source: Path, where: Mapping[str, str]) -> Runs:
    """The rows of a table that ``where`` picks; errors as ``read_latency_table``."""
    try:
        frame = pd.read_csv(source)
    except (OSError, ValueError) as error:
        raise DataError(f"{source} is not a readable CSV file: {error}.") from error
    layout = recognise(frame.columns)
    if layout is None:
        sets = "; or ".join(", ".join(dict.fromkeys(each.numbers)) for each in LAYOUTS)
        raise DataError(f"{source} has no known set of columns: wanted are {sets}.")
    for column, value in where.items():
        if column not in frame:
            raise ConfigError(
                f"{source} has no column '{column}' for --where:"
                f" it has {', '.join(map(str, frame))}."
            )
        frame = frame[frame[column].astype(str) == value]
    if frame.empty:
        raise DataError(f"{source} has no row with {_pairs(where)}.")
    known = [name for name in layout.engine if name in frame]
    engine = {name: sorted(frame[name].astype(str).unique()) for name in known}
    several = {name: values for name, values in engine.items() if len(values) > 1}
    if several:
        options = "; ".join(f"{name}: {', '.join(values)}" for name, values in several.items())
        raise DataError(f"{source} has rows of several engines, pick one with --where ({options}).")
    numbers = frame[list(dict.fromkeys(layout.numbers))].apply(pd.to_numeric, errors="coerce")
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    if bad.to_numpy().any():
        counted = [(name, int(n)) for name, n in bad.sum().items() if n]
        reasons = [f"in {n} {name} is not a number above 0" for name, n in counted]
        raise DataError(f"{source} has unusable rows: {'; '.join(reasons)}.")
    counts = numbers[[layout.batch, layout.prompt, layout.output]]
    if (counts % 1 > 0).to_numpy().any():
        raise DataError(f"{source} has batch sizes or lengths that are not whole numbers.")
    largest = int(numbers[layout.batch].max())
    if largest > _MOST_REQUESTS:
        raise DataError(
            f"{source} has a batch of {largest} requests, more than the {_MOST_REQUESTS} of which"
            " the steps can be followed: check its columns."
        )
    used, left_out = _consistent(frame.assign(**{str(c): numbers[c] for c in numbers}), layout)
    if used.empty:
        reasons = [f"{n} {reason}" for reason, n in left_out.items() if n]
        raise DataError(f"{source} has no usable row: {'; '.join(reasons)}.")
    return Runs(used, layout, {name: values[0] for name, values in engine.items()}, left_out)


def _require_servable(source: Path, runs: Runs, engine: EngineInfo) -> None:
    longest = max(batch.prompt_tokens + batch.output_tokens for batch in runs.batches())
    limit = max_request_tokens(engine)
    if longest > limit:
        raise DataError(
            f"{source} has a request of {longest} tokens, longer than the {limit} that the engine"
            " can complete (KV cache, max_model_len): give the engine.json of the engine that was"
            " measured."
        )


def batch_rows(runs: Runs, limits: Limits) -> list[dict[str, Any]]:
    """Rows of the steps table."""
    layout, name = runs.layout, " / ".join(runs.engine.values())
    rows: list[dict[str, Any]] = []

    def add(batch: Batch, sums: Mapping[str, float], ms: float) -> None:
        last = batch.prompt_tokens + batch.output_tokens - 1
        rows.append(
            {
                "engine": name or "published",
                "step": len(rows),
                "n_seqs": batch.size,
                "max_prefill_ctx": batch.prompt_tokens if sums["prefill_tokens"] else 0,
                "max_decode_ctx": last if sums["decode_tokens"] else 0,
                "origin": "measured",
                **{column: _whole(column, value) for column, value in sums.items()},
                "step_ms": ms,
            }
        )

    batches = runs.batches()
    if layout.between is None:
        for batch, ms in zip(batches, _ms(runs, layout.total), strict=True):
            add(batch, batch_steps(batch, limits), ms)
        return rows
    first, between = _ms(runs, layout.first), _ms(runs, layout.between)
    for batch, first_ms, token_ms in zip(batches, first, between, strict=True):
        prompts = Batch(batch.size, batch.prompt_tokens, 1)
        add(prompts, batch_steps(prompts, limits), first_ms)
        if batch.output_tokens > 1:
            add(batch, _mean_decode_step(batch), token_ms)
    return rows


def _mean_decode_step(batch: Batch) -> dict[str, float]:
    # The steps after the first token see prompt_tokens, prompt_tokens + 1, … tokens of context.
    context = batch.prompt_tokens + (batch.output_tokens - 2) / 2
    return {
        "prefill_tokens": 0,
        "decode_tokens": batch.size,
        "decode_ctx_tokens": batch.size * context,
        "prefill_attn": 0,
    }


def _consistent(frame: pd.DataFrame, layout: Layout) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows whose columns agree with each other, each once, and how many are left out why."""
    repeated = frame.duplicated()
    frame = frame[~repeated]
    tokens = frame[layout.batch] * (frame[layout.prompt] + frame[layout.output])
    agrees = pd.Series(True, index=frame.index)
    if layout.throughput is not None:
        seconds = frame[layout.total] * layout.ms / 1000
        agrees = (frame[layout.throughput] * seconds / tokens - 1).abs() <= _TOLERANCE
    elif layout.total is not None and layout.between is not None:
        parts = frame[layout.first] + frame[layout.between] * (frame[layout.output] - 1)
        agrees = (parts / frame[layout.total] - 1).abs() <= _TOLERANCE
    return frame[agrees], {
        "repeat another row in everything": int(repeated.sum()),
        "have times that disagree with their tokens or each other": int((~agrees).sum()),
    }


def _ms(runs: Runs, column: str | None) -> list[float]:
    return (runs.frame[column] * runs.layout.ms).tolist()


def _whole(column: str, value: float) -> float | int:
    return float(value) if column in ("prefill_attn", "decode_ctx_tokens") else int(value)


def _columns(layout: Layout) -> dict[str, Any]:
    return {
        "step_ms": {"from": list(layout.numbers[3:]), "ms_per_unit": layout.ms},
        "batch": layout.batch,
        "prompt_tokens": layout.prompt,
        "output_tokens": layout.output,
    }


def _pairs(where: Mapping[str, str]) -> str:
    return " and ".join(f"{column} = {value}" for column, value in where.items()) or "values"

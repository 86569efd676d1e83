"""Reading the observed requests of one endpoint, grouped by the load they arrived under."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from chimera_train.errors import ConfigError, DataError

__all__ = ["Load", "Loads", "read_loads"]

_REQUIRED = ("arrival_ms", "prompt_tokens", "ttft_ms", "e2e_ms")
_LABEL = "rate_per_s"
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".jsonl", ".jsonl.gz")
# Fewer give no usable mean of a wait, whose values are correlated and heavy-tailed.
_MIN_REQUESTS = 100
_MIN_LOADS = 3
# Windows of similar rates are one load: a single window is too short for a mean wait.
_MAX_BINS = 8
_LABEL_TOLERANCE = 0.1

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that arrived at about the same rate.

    Attributes:
        rate_per_s: their mean arrival rate, as measured.
        prompt_tokens, ttft_ms, e2e_ms: of each, in order of arrival, shape (n,).
        others: requests that were in the endpoint when each arrived, shape (n,).
        saturated: the requests without a first token became more than chance explains.
        throughput_per_s: first tokens per second in the second half of the time, when the endpoint
            has filled up; where it is saturated, that is its capacity.
    """

    rate_per_s: float
    prompt_tokens: Floats
    ttft_ms: Floats
    e2e_ms: Floats
    others: npt.NDArray[np.int64]
    saturated: bool
    throughput_per_s: float


@dataclass(frozen=True, slots=True)
class Loads:
    """The loads of one endpoint, by ascending rate, and the file they were read from."""

    loads: tuple[Load, ...]
    source: Path


def read_loads(source: Path, *, window_s: float | None = None) -> Loads:
    """Read requests, check every row, and group them by load.

    Args:
        source: a ``.parquet``, ``.csv``, ``.csv.gz``, ``.jsonl`` or ``.jsonl.gz`` file of one
            endpoint's requests with the columns arrival_ms, prompt_tokens, ttft_ms and e2e_ms, and
            rate_per_s unless ``window_s`` is given. Others are not read.
        window_s: cut one continuous log into windows of this many seconds and group those of
            similar arrival rates. Without it the requests of one rate_per_s are a load, a run
            without pauses whose clock may start anywhere; its rate is measured all the same.

    Raises:
        ConfigError: the kind of file is not supported.
        DataError: the file is missing, unreadable, empty or lacks a column; rows are unusable (how
            many and why is named); there are fewer than 3 loads, or one has fewer than 100
            requests; or the requests of a rate_per_s did not arrive at about that rate.
    """
    raw = _read(source)
    needed = [*_REQUIRED, *([_LABEL] if window_s is None else [])]
    missing = [name for name in needed if name not in raw]
    if missing:
        hint = " (or cut the log into windows with --window-s)" if _LABEL in missing else ""
        raise DataError(
            f"{source} lacks the column(s) {', '.join(missing)}{hint}; it has"
            f" {', '.join(map(str, raw.columns)) or 'none'}."
        )
    if raw.empty:
        raise DataError(f"{source} has no requests.")
    frame = raw[needed].apply(pd.to_numeric, errors="coerce").astype(float)
    problems = [f"in {int(bad.sum())} {reason}" for reason, bad in _checks(frame) if bad.any()]
    if problems:
        raise DataError(f"{source} has unusable rows: {'; '.join(problems)}.")
    frame = frame.sort_values("arrival_ms", kind="stable").reset_index(drop=True)
    loads = _by_label(source, frame) if window_s is None else _by_window(frame, 1000 * window_s)
    loads = sorted(loads, key=lambda load: load.rate_per_s)
    if len(loads) < _MIN_LOADS:
        raise DataError(
            f"{source} shows {len(loads)} loads, at least {_MIN_LOADS} are needed: observe the"
            " endpoint at more arrival rates, from idle to where requests wait."
        )
    for load in loads:
        if len(load.ttft_ms) < _MIN_REQUESTS:
            raise DataError(
                f"{source} has {len(load.ttft_ms)} requests at {load.rate_per_s:.4g}/s, at least"
                f" {_MIN_REQUESTS} are needed at each rate: observe it longer."
            )
    return Loads(tuple(loads), source)


def _read(source: Path) -> pd.DataFrame:
    if not source.name.endswith(_SUFFIXES):
        raise ConfigError(
            f"{source} is not a table of requests: give a {', '.join(_SUFFIXES[:-1])} or"
            f" {_SUFFIXES[-1]} file."
        )
    if not source.is_file():
        raise DataError(f"{source} does not exist.")
    try:
        if source.suffix == ".parquet":
            return pd.read_parquet(source)
        if ".csv" in source.suffixes[-2:]:
            return pd.read_csv(source)
        return pd.read_json(source, lines=True, dtype=False)
    # pandas raises subclasses of ValueError for what it cannot parse or decode.
    except (OSError, EOFError, ValueError, zlib.error, pa.ArrowException) as error:
        raise DataError(f"{source} cannot be read as {source.suffixes[-1]}: {error}.") from error


def _checks(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    for name in frame.columns:
        yield f"{name} is empty, infinite or not a number", ~np.isfinite(frame[name])
        if name in ("ttft_ms", "e2e_ms", _LABEL):
            yield f"{name} is not above 0", frame[name] <= 0
        else:
            yield f"{name} is negative", frame[name] < 0
    yield "e2e_ms is below ttft_ms", frame["e2e_ms"] < frame["ttft_ms"]


def _by_label(source: Path, frame: pd.DataFrame) -> list[Load]:
    loads = []
    for label, mine in frame.groupby(_LABEL):
        arrivals = mine["arrival_ms"].to_numpy()
        begin, end = float(arrivals[0]), float(arrivals[-1])
        n = len(mine)
        if end == begin:
            raise DataError(f"{source}: all requests at {label:.4g}/s arrived at the same time.")
        rate = 1000 * (n - 1) / (end - begin)
        # Chance alone moves the rate of n Poisson arrivals by 1/√n.
        if abs(rate / float(str(label)) - 1) > _LABEL_TOLERANCE + 3 / np.sqrt(n):
            raise DataError(
                f"{source}: the requests at rate_per_s {label:.4g} arrived at {rate:.4g}/s; label"
                " them by the rate that was reached, and each run by its own."
            )
        loads.append(_load(rate, mine, _Queue(mine), [(begin, end)]))
    return loads


def _by_window(frame: pd.DataFrame, window_ms: float) -> list[Load]:
    arrivals = frame["arrival_ms"].to_numpy()
    window = ((arrivals - arrivals[0]) // window_ms).astype(np.int64)
    # The last window is not over.
    counts = np.bincount(window)[:-1]
    order = np.argsort(counts, kind="stable")
    queue = _Queue(frame)
    loads = []
    for members in np.array_split(order, min(_MAX_BINS, max(len(order), 1))):
        mine = frame[np.isin(window, members)]
        if mine.empty:  # the endpoint was idle
            continue
        starts = arrivals[0] + window_ms * members
        times = [(float(start), float(start + window_ms)) for start in starts]
        rate = 1000 * len(mine) / (window_ms * len(members))
        loads.append(_load(rate, mine, queue, times))
    return loads


class _Queue:
    """How many requests were in the endpoint, and how many of them had no first token yet."""

    def __init__(self, frame: pd.DataFrame) -> None:
        """``frame`` in order of arrival."""
        self._arrivals = frame["arrival_ms"].to_numpy()
        self._first_tokens = np.sort((frame["arrival_ms"] + frame["ttft_ms"]).to_numpy())
        ends = np.sort((frame["arrival_ms"] + frame["e2e_ms"]).to_numpy())
        before = np.arange(len(frame)) - np.searchsorted(ends, self._arrivals, side="right")
        self.others = pd.Series(before, index=frame.index)

    def first_tokens(self, time_ms: float) -> int:
        """First tokens until then."""
        return int(np.searchsorted(self._first_tokens, time_ms, side="right"))

    def waiting(self, time_ms: float) -> int:
        """Requests without one then."""
        arrived = int(np.searchsorted(self._arrivals, time_ms, side="right"))
        return arrived - self.first_tokens(time_ms)


def _load(
    rate_per_s: float, mine: pd.DataFrame, queue: _Queue, times: list[tuple[float, float]]
) -> Load:
    growth = sum(queue.waiting(end) - queue.waiting(begin) for begin, end in times)
    halves = [((begin + end) / 2, end) for begin, end in times]
    tokens = sum(queue.first_tokens(end) - queue.first_tokens(half) for half, end in halves)
    seconds = sum(end - half for half, end in halves) / 1000
    return Load(
        rate_per_s=rate_per_s,
        prompt_tokens=mine["prompt_tokens"].to_numpy(),
        ttft_ms=mine["ttft_ms"].to_numpy(),
        e2e_ms=mine["e2e_ms"].to_numpy(),
        others=queue.others[mine.index].to_numpy(),
        # n arrivals and n first tokens: without a trend their difference has the standard
        # deviation √(2n) at most. An endpoint that drifts that far without one is so near to
        # saturation that its mean wait would take a longer run to show.
        saturated=bool(growth > 2 * np.sqrt(2 * len(mine))),
        throughput_per_s=tokens / seconds,
    )

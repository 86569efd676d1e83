"""How far collections are, also while they run: read from their journals, which stay unlocked."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from chimera_train.collect.data_set import mean_score, read_collection
from chimera_train.collect.journal import FILE_NAME, Stored

__all__ = ["ModelStatus", "Status", "collection_status"]

# Of the latest programs of this span: an engine's pace changes with its load.
_RATE_OVER = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The programs of one model in one collection.

    Attributes:
        wanted: all that belong to it.
        completed, failed: those that were run; failed ones are tried again.
        missing: the others.
        mean_score: of those that were graded, 0 to 1; None: none was.
        per_minute: programs finished in the last half hour of the collection; None: fewer than two.
        eta_s: seconds until none is missing, at that rate; None where nothing runs.
    """

    wanted: int
    completed: int
    failed: int
    missing: int
    mean_score: float | None
    per_minute: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """One collection.

    Attributes:
        directory: where it is.
        running: whether a process on this machine is adding to it.
        shard: ``i/n``; None: it is not one of several.
        models: by name.
        errors: how often programs failed with which message, the most frequent first, at most 5.
    """

    directory: str
    running: bool
    shard: str | None
    models: Mapping[str, ModelStatus]
    errors: Mapping[str, int]


class _Seen(NamedTuple):
    model: str
    error: str | None
    score: float | None
    ended_at: datetime


def collection_status(directory: Path, *, now: datetime) -> Status:
    """The state of the collection in ``directory`` at ``now``, which has a time zone.

    Raises:
        DataError: it is none, or its journal is damaged.
    """
    stored = read_collection(directory, _seen)
    programs: list[_Seen] = list(stored.entries.briefs.values())
    running = _is_locked(directory / FILE_NAME)
    wanted = _wanted(directory, stored)
    errors = Counter(seen.error for seen in programs if seen.error is not None)
    return Status(
        directory=str(directory),
        running=running,
        shard=stored.settings.get("shard"),
        models={
            model: _of_model([s for s in programs if s.model == model], wanted, running, now)
            for model in stored.settings["models"]
        },
        errors=dict(errors.most_common(5)),
    )


def _seen(entry: Mapping[str, Any]) -> _Seen:
    program = entry["program"]
    latency = timedelta(milliseconds=program["program_latency_ms"])
    started_at = datetime.fromisoformat(program["started_at"]).astimezone(UTC)
    return _Seen(program["model"], program["error"], program["score"], started_at + latency)


def _wanted(directory: Path, stored: Stored) -> int:
    """Programs of each model."""
    questions = directory / "questions.parquet"
    settings = stored.settings
    # Written as soon as the engines are ready, since that is how many the task really had.
    known = questions.is_file()
    count = pq.read_metadata(questions).num_rows if known else settings["limit"]
    return int(count * settings["samples"])


def _of_model(programs: list[_Seen], wanted: int, running: bool, now: datetime) -> ModelStatus:
    failed = sum(seen.error is not None for seen in programs)
    missing = max(0, wanted - len(programs))
    per_minute = _rate(programs, now if running else None)
    return ModelStatus(
        wanted=wanted,
        completed=len(programs) - failed,
        failed=failed,
        missing=missing,
        mean_score=mean_score(seen.score for seen in programs),
        per_minute=per_minute,
        eta_s=60 * missing / per_minute if running and per_minute else None,
    )


def _rate(programs: list[_Seen], now: datetime | None) -> float | None:
    """Programs a minute until ``now``; None: until the last one."""
    ends = sorted(seen.ended_at for seen in programs)
    if len(ends) < 2:
        return None
    until = now or ends[-1]
    recent = [end for end in ends if end >= until - _RATE_OVER]
    if len(recent) < 2:
        return 0.0
    # From the first to the last: what was before it, a start or a pause, is not its time.
    minutes = (until - recent[0]).total_seconds() / 60
    return (len(recent) - 1) / minutes if minutes > 0 else None


def _is_locked(path: Path) -> bool:
    """Whether a process on this machine holds a lock on ``path``; asks without taking it."""
    try:
        status = path.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any(device in line.split() for line in locks.splitlines())

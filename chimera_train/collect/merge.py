"""Collections of the same settings as one: shards that several machines ran, or parts of a week."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from chimera_train.collect.data_set import brief, program_id, read_collection, write_data_set
from chimera_train.collect.journal import Stored, differences, open_journal
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import replaced_directory
from chimera_train.traces.store import read_table, write_table

__all__ = ["MergeResult", "merge_collections"]

# Programs that are written at once.
_BATCH = 500


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What was put together.

    Attributes:
        programs, stages: rows of the tables.
        failed: programs with an error.
        duplicates: programs that were in several directories and are there once.
        missing: programs that the settings ask for and no directory has, those of missing shards
            not counted.
        missing_shards: which of the shards are in no directory, from 1.
    """

    programs: int
    stages: int
    failed: int
    duplicates: int
    missing: int
    missing_shards: tuple[int, ...]


def merge_collections(directories: Sequence[Path], out: Path) -> MergeResult:
    """Write the programs of several collections into one, which can be gone on with.

    Of a program that is in several, one that completed is taken before one that failed, and else
    that of the first directory. The new directory has the settings of the parts without their
    shard, so ``collect traces`` with them runs what is missing.

    Raises:
        ConfigError: the settings differ, shards are of different numbers, or ``out`` holds
            something already.
        DataError: a directory holds no collection, or a damaged one.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} holds something already: choose another --out.")
    parts = {directory: read_collection(directory, _brief) for directory in directories}
    settings = _common_settings(parts)
    missing_shards = _missing_shards(parts)
    questions = {
        row["question_id"]: {str(name): value for name, value in row.items()}
        for directory in parts
        for row in _with_none(read_table(directory, "questions")).to_dict("records")
    }
    taken = _taken(parts)
    wanted = _in_order(taken, list(questions))
    n_wanted = len(questions) * len(settings["models"]) * settings["samples"]
    with (
        replaced_directory(out) as directory,
        open_journal(directory, settings, program_id, _brief) as journal,
    ):
        for stored in parts.values():
            for run in stored.runs:
                journal.begin_run(run)
        names = iter(wanted)
        while batch := list(islice(names, _BATCH)):
            journal.append(*(taken[name].entries[name] for name in batch))
        write_table(directory, "questions", questions.values())
        is_whole = not missing_shards and len(wanted) == n_wanted
        counts = write_data_set(
            directory, settings, journal, wanted, len(questions), is_whole=is_whole
        )
    return MergeResult(
        programs=counts.programs,
        stages=counts.stages,
        failed=counts.failed,
        duplicates=sum(len(stored.entries) for stored in parts.values()) - len(taken),
        missing=n_wanted - counts.programs,
        missing_shards=missing_shards,
    )


class _Brief(NamedTuple):
    """``data_set.Brief``, and where a program belongs."""

    error: str | None
    n_stages: int
    score: float | None
    sample: int
    question_id: str
    model: str


def _brief(entry: Mapping[str, Any]) -> _Brief:
    program = entry["program"]
    return _Brief(*brief(entry), program["sample"], program["question_id"], program["model"])


def _with_none(table: pd.DataFrame) -> pd.DataFrame:
    """What is absent as None, which pandas makes NaN of where a whole column is."""
    return table.astype(object).where(table.notna(), None)


def _common_settings(parts: Mapping[Path, Stored]) -> dict[str, Any]:
    (first, stored), *others = parts.items()
    common = _without_shard(stored)
    for directory, other in others:
        if _without_shard(other) != common:
            raise ConfigError(
                f"{directory} was collected with other settings than {first}:"
                f" {differences(common, _without_shard(other))}. Only parts of one collection can"
                " be merged."
            )
    return common


def _without_shard(stored: Stored) -> dict[str, Any]:
    return {name: value for name, value in stored.settings.items() if name != "shard"}


def _missing_shards(parts: Mapping[Path, Stored]) -> tuple[int, ...]:
    shards = {directory: stored.settings.get("shard") for directory, stored in parts.items()}
    totals = {shard.split("/")[1] for shard in shards.values() if shard is not None}
    if len(totals) > 1:
        named = ", ".join(f"{directory} is {shard}" for directory, shard in shards.items() if shard)
        raise ConfigError(f"The shards are of different numbers: {named}. Merge those of one.")
    if not totals or None in shards.values():
        return ()
    there = {int(shard.split("/")[0]) for shard in shards.values()}
    return tuple(sorted(set(range(1, int(totals.pop()) + 1)) - there))


def _taken(parts: Mapping[Path, Stored]) -> dict[str, Stored]:
    """Where each program is taken from."""
    taken: dict[str, Stored] = {}
    for stored in parts.values():
        for name, about in stored.entries.briefs.items():
            other = taken.get(name)
            failed = other is not None and other.entries.briefs[name].error is not None
            if other is None or (failed and about.error is None):
                taken[name] = stored
    return taken


def _in_order(taken: Mapping[str, Stored], questions: Sequence[str]) -> list[str]:
    """Ids of the programs in the order of a collection: by sample, question and model."""
    place = {name: index for index, name in enumerate(questions)}

    def key(name: str) -> tuple[int, int, str]:
        about: _Brief = taken[name].entries.briefs[name]
        if about.question_id not in place:
            raise DataError(
                f"Program '{name}' is on question '{about.question_id}', which no table of"
                " questions has: run the collection of its directory once more."
            )
        return about.sample, place[about.question_id], about.model

    return sorted(taken, key=key)

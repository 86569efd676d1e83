"""Reading and writing trace tables as Parquet (zstd) with a schema version."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from chimera_train.errors import ConfigError, DataError
from chimera_train.files import atomic_path
from chimera_train.traces.schemas import SCHEMA_VERSION, SCHEMAS

__all__ = ["Traces", "load_traces", "read_any", "read_table", "table_writer", "write_table"]

_VERSION_KEY = b"schema_version"
# Of rows in memory at once: some hundred megabytes with long texts.
_ROW_GROUP = 10_000

Row = Mapping[str, Any]


def write_table(directory: Path, name: str, rows: Iterable[Row]) -> Path:
    """Write ``rows`` as table ``name`` (a key of ``SCHEMAS``) into ``directory``, atomically.

    Absent columns become null. ``rows`` may be more than fit into memory. Raises ``DataError`` if a
    row does not fit the schema.
    """
    with table_writer(directory, name) as write:
        batches = iter(rows)
        while batch := list(islice(batches, _ROW_GROUP)):
            write(batch)
    return directory / f"{name}.parquet"


@contextmanager
def table_writer(directory: Path, name: str) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Yield what appends rows to table ``name``, a row group each time; atomic as a whole.

    Raises:
        DataError: when called with a row that does not fit the schema.
    """
    # What columns mean is in the data dictionary, and not once more in every file.
    schema = pa.schema(
        [field.remove_metadata() for field in SCHEMAS[name]],
        {_VERSION_KEY: str(SCHEMA_VERSION).encode()},
    )
    with (
        atomic_path(directory / f"{name}.parquet") as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        yield lambda rows: writer.write_table(_checked(name, rows, schema))


def _checked(name: str, rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    try:
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        data.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
        raise DataError(f"Table '{name}' does not fit its schema: {error}.") from error
    for field in schema:
        if not field.nullable and data[field.name].null_count:
            raise DataError(f"Table '{name}': column '{field.name}' has empty values.")
    return data


def read_table(directory: Path, name: str) -> pd.DataFrame:
    """Read table ``name`` from ``directory``; optional columns that it lacks are null.

    Raises:
        DataError: the file is missing, is not Parquet, lacks a required column, or was
            written by a newer version of the tool.
    """
    path = directory / f"{name}.parquet"
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: give a directory written by 'chimera-train collect'."
        )
    try:
        data = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}.") from error
    version = int((data.schema.metadata or {}).get(_VERSION_KEY, b"0"))
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version}, newer than the supported {SCHEMA_VERSION}:"
            " update chimera-train."
        )
    absent = [field for field in SCHEMAS[name] if field.name not in data.column_names]
    missing = [field.name for field in absent if not field.nullable]
    if missing:
        raise DataError(f"{path} lacks the column(s) {', '.join(missing)}.")
    for field in absent:
        data = data.append_column(field, pa.nulls(len(data), field.type))
    return data.to_pandas()


def read_any(path: Path) -> pd.DataFrame:
    """Read a table that others wrote: ``.csv``, ``.jsonl`` (either also ``.gz``) or ``.parquet``.

    Raises:
        ConfigError: another kind of file.
        DataError: it is missing or unreadable.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    try:
        if path.name.endswith((".jsonl", ".jsonl.gz")):
            # pandas would take numbers for dates where a column's name suggests it.
            return pyarrow.json.read_json(path).to_pandas()
        if path.name.endswith((".csv", ".csv.gz")):
            return pd.read_csv(path)
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
    # pandas raises subclasses of ValueError for what it cannot parse or decode.
    except (OSError, EOFError, ValueError, zlib.error, pa.ArrowInvalid) as error:
        raise DataError(f"{path} is not a readable table: {error}.") from error
    raise ConfigError(f"{path} is not a .csv, .jsonl or .parquet file (the first two may be .gz).")


@dataclass(frozen=True, slots=True)
class Traces:
    """Completed programs with their questions and LLM calls (in order; tools are left out)."""

    programs: pd.DataFrame
    stages: pd.DataFrame
    questions: pd.DataFrame


def load_traces(directory: Path) -> Traces:
    """Load the completed programs of a collected data set, with their stages and questions.

    Programs with an error are left out, since their lengths and scores mean nothing.

    Raises:
        DataError: a table is missing or malformed, a program is there twice, or none completed.
    """
    programs = read_table(directory, "programs")
    programs = programs[programs["error"].isna()].reset_index(drop=True)
    twice = programs.loc[programs["program_id"].duplicated(), "program_id"]
    if not twice.empty:
        raise DataError(
            f"{directory} has program '{twice.iloc[0]}' more than once: collect or import it again."
        )
    if programs.empty:
        raise DataError(f"{directory} has no completed program: collect more traces first.")
    stages = read_table(directory, "stages")
    stages = stages[stages["tool"].isna() & stages["program_id"].isin(programs["program_id"])]
    stages = stages.sort_values(["program_id", "stage_index"]).reset_index(drop=True)
    return Traces(programs, stages, read_table(directory, "questions"))

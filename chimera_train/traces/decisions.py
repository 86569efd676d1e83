"""Reading the gateway's decision log: one Parquet file, or the directory of its shards."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from chimera_train.decision_schema import DECISION_SCHEMA, SCHEMA_VERSION
from chimera_train.errors import DataError

__all__ = ["decision_shards", "read_decisions"]

#: Without these a row says nothing.
_NEEDED = ("time", "program_id")


def decision_shards(path: Path) -> Iterator[tuple[Path, pa.Table]]:
    """The shards of a log in the order in which they were written, with the log's columns.

    Columns that an older gateway did not write are null.

    Raises:
        DataError: there is no shard, or one is unreadable, no decision log, or of a newer schema.
    """
    shards = sorted(path.glob("decisions-*.parquet")) if path.is_dir() else [path]
    if not shards or not shards[0].is_file():
        raise DataError(
            f"{path} holds no decision log: give the directory of 'chimera-train serve --decisions'"
            " or one of its files."
        )
    for shard in shards:
        yield shard, _read(shard)


def read_decisions(path: Path) -> pd.DataFrame:
    """All rows of a log in order of arrival, with a column ``bundle``: its name and version.

    Raises:
        DataError: as ``decision_shards``, or there is no row.
    """
    tables = []
    for _, table in decision_shards(path):
        about = table.schema.metadata or {}
        bundle = b" ".join(about.get(key, b"?") for key in (b"bundle", b"bundle_version")).decode()
        tables.append(table.to_pandas().assign(bundle=bundle))
    rows = pd.concat(tables, ignore_index=True)
    if rows.empty:
        raise DataError(f"{path} holds no decision: send requests through the gateway first.")
    return rows.sort_values("time", kind="stable", ignore_index=True)


def _read(path: Path) -> pa.Table:
    try:
        data = pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a readable Parquet file ({error}): remove it or restore it."
        ) from error
    about = data.schema.metadata or {}
    missing = [name for name in _NEEDED if name not in data.column_names]
    if missing:
        raise DataError(f"{path} is no decision log: it lacks the column '{missing[0]}'.")
    version = about.get(b"schema_version", b"1")
    if version.isdigit() and int(version) > SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version.decode()}, newer than the supported"
            f" {SCHEMA_VERSION}: update chimera-train."
        )
    columns = [
        data[field.name] if field.name in data.column_names else pa.nulls(len(data), field.type)
        for field in DECISION_SCHEMA
    ]
    try:
        table = pa.Table.from_arrays(
            [
                column.cast(field.type)
                for column, field in zip(columns, DECISION_SCHEMA, strict=True)
            ],
            schema=pa.schema(list(DECISION_SCHEMA), about),
        )
    except pa.ArrowException as error:
        raise DataError(f"{path} is no decision log: {error}.") from error
    for name in _NEEDED:
        if table[name].null_count:
            raise DataError(f"{path} is no decision log: '{name}' is empty in some rows.")
    return table

"""Rows of a task's data, each with the place where it stands, for messages."""

import gzip
import json
import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chimera_train.errors import ConfigError, DataError
from chimera_train.tasks.settings import DataSource, Names

__all__ = ["Row", "read_json_lines", "read_rows"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of data; ``where`` says which one and ``task_file`` who maps its fields."""

    values: Mapping[str, Any]
    number: int
    where: str
    task_file: str

    def get(self, names: Names | None, default: Any = None) -> Any:
        """The first of the named fields that the row has and that is not null."""
        for name in [names] if isinstance(names, str) else names or []:
            if self.values.get(name) is not None:
                return self.values[name]
        return default

    def need(self, names: Names, key: str) -> Any:
        """As ``get``; ``key`` is what names the field in the task file.

        Raises:
            DataError: the row has none of the fields.
        """
        value = self.get(names)
        if value is None:
            wanted = names if isinstance(names, str) else "' or '".join(names)
            raise DataError(
                f"{self.where} has no field '{wanted}' (it has {', '.join(self.values)}): correct"
                f" fields.{key} in {self.task_file}, or the row."
            )
        return value

    def text(self, names: Names, key: str) -> str:
        """A text or number as text.

        Raises:
            DataError: as ``need``, or it is neither, or empty.
        """
        value = self.need(names, key)
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise self.wrong(key, "must be a text that is not empty")
        return str(value)

    def wrong(self, key: str, what: str) -> DataError:
        """The error of a field whose content cannot be used."""
        return DataError(f"{self.where}: the field mapped to '{key}' in {self.task_file} {what}.")


def read_rows(source: DataSource, task_file: Path) -> Iterator[Row]:
    """All rows of a task's data, in order.

    Raises:
        ConfigError: another kind of file.
        DataError: the data is missing, damaged, not UTF-8, or holds no rows.
    """
    if source.file is not None:
        path = source.file if source.file.is_absolute() else task_file.parent / source.file
        name, rows = str(path), _of_file(path)
    else:
        name, rows = f"data set {source.dataset}, split {source.split}", _of_data_set(source)
    number = -1
    for number, (where, values) in enumerate(rows):
        yield Row(values, number, where, str(task_file))
    if number < 0:
        raise DataError(f"{name} holds no rows: choose another file or split.")


def _of_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.name.endswith(".parquet"):
        yield from _of_parquet(path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from read_json_lines(path)
    else:
        raise ConfigError(f"{path}: questions are read from .jsonl, .jsonl.gz or .parquet files.")


def read_json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each line's place and object, from a file that may be compressed.

    Raises:
        DataError: the file is missing, cut short, not UTF-8, or a line is not a JSON object.
    """
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is not UTF-8: convert the file.") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where} is not JSON ({error}): repair or remove the line.") from error
        if not isinstance(values, dict):
            raise DataError(f"{where} is not a JSON object: each line must hold one question.")
        yield where, values


def _lines(path: Path) -> Iterator[bytes]:
    if not path.is_file():
        raise DataError(f"{path} does not exist or is no file.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is damaged or cut short ({error}): fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _of_parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        values = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}.") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(values))


def _of_data_set(source: DataSource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import datasets

    # A hub out of reach is told in one sentence, not also in twelve about each attempt.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    dataset = str(source.dataset)
    try:
        if source.files:
            kind = "parquet" if source.files[0].endswith(".parquet") else "json"
            base = f"hf://datasets/{dataset}@{source.revision}"
            paths = [f"{base}/{name}" for name in source.files]
            # The files are of one split, which the loader of single files calls "train".
            data = datasets.load_dataset(kind, data_files=paths, split="train")
        else:
            data = datasets.load_dataset(
                dataset, name=source.config, split=source.split, revision=source.revision
            )
    except Exception as error:  # the hub and the loaders raise of many kinds
        first = str(error).strip().split("\n")[0] or type(error).__name__
        advice = (
            f"name its split in the task file (it is '{source.split}'), or give one of its files"
            if Path(dataset).is_dir()
            else "check the network, or give a file that you have (--data)"
        )
        raise DataError(
            f"data set {dataset} cannot be loaded ({first.rstrip('.')}): {advice}."
        ) from error
    where = f"data set {dataset}, split {source.split}, row"
    yield from ((f"{where} {number}", row) for number, row in enumerate(data))

"""Trace tables: what is written is read back, and what does not fit is refused."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chimera_train.errors import DataError
from chimera_train.traces.schemas import SCHEMA_VERSION, SCHEMAS
from chimera_train.traces.store import load_traces, read_table, write_table


def program(program_id: str, **fields: Any) -> dict[str, Any]:
    return {
        "program_id": program_id,
        "task": "t",
        "question_id": "q",
        "workflow": "w",
        "model": "m",
        "sample": 0,
        "n_stages": 2,
        "total_output_tokens": 7,
    } | fields


def stage(program_id: str, index: int, **fields: Any) -> dict[str, Any]:
    return {
        "program_id": program_id,
        "stage_index": index,
        "stage": f"s{index}",
        "prompt_tokens": 3,
        "output_tokens": 4,
        "attempt": 1,
    } | fields


QUESTION = {"question_id": "q", "task": "t", "text": "?", "metadata": "{}"}


def fill(directory: Path, *programs: dict[str, Any], stages: Any = ()) -> None:
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(directory, "questions", [QUESTION])


def test_rows_are_read_back_and_absent_columns_are_null(tmp_path: Path) -> None:
    started_at = datetime(2031, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)
    write_table(tmp_path, "programs", [program("a", started_at=started_at, score=0.5)])
    (row,) = read_table(tmp_path, "programs").itertuples()
    assert (row.program_id, row.score, row.started_at) == ("a", 0.5, started_at)
    assert pd.isna(row.engine)
    assert pd.isna(row.seed)
    assert list(read_table(tmp_path, "programs")) == SCHEMAS["programs"].names


def test_files_are_zstd_and_carry_the_schema_version(tmp_path: Path) -> None:
    file = pq.ParquetFile(write_table(tmp_path, "programs", [program("a")]))
    assert file.schema_arrow.metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    "row",
    [
        program("a", sample="first"),
        program("a", total_output_tokens=None),
        program("a", n_stages=2**40),
        {"program_id": "a"},
    ],
    ids=["type", "null", "range", "absent"],
)
def test_rows_that_do_not_fit_are_refused_and_the_old_table_stays(
    tmp_path: Path, row: dict[str, Any]
) -> None:
    path = write_table(tmp_path, "programs", [program("old")])
    before = path.read_bytes()
    with pytest.raises(DataError, match="programs"):
        write_table(tmp_path, "programs", [row])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_only_completed_programs_are_loaded_with_their_stages_in_order(tmp_path: Path) -> None:
    fill(
        tmp_path,
        program("b"),
        program("failed", error="HTTP 500"),
        program("a"),
        stages=[stage("b", 1), stage("b", 0), stage("failed", 0), stage("a", 0)],
    )
    traces = load_traces(tmp_path)
    assert list(traces.programs["program_id"]) == ["b", "a"]
    keys = traces.stages[["program_id", "stage_index"]].itertuples(index=False, name=None)
    assert list(keys) == [("a", 0), ("b", 0), ("b", 1)]
    assert list(traces.questions["question_id"]) == ["q"]


def test_without_a_completed_program_there_is_nothing_to_load(tmp_path: Path) -> None:
    fill(tmp_path, program("a", error="HTTP 500"))
    with pytest.raises(DataError, match="no completed program"):
        load_traces(tmp_path)


def test_a_program_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path, "programs", [program("a"), program("b"), program("a")])
    with pytest.raises(DataError, match="has program 'a' more than once"):
        load_traces(tmp_path)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"programs\.parquet does not exist.*collect"):
        load_traces(tmp_path)


def test_a_file_that_is_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "programs.parquet").write_text("no")
    with pytest.raises(DataError, match="not a readable Parquet file"):
        read_table(tmp_path, "programs")


def test_a_table_without_a_column_names_it(tmp_path: Path) -> None:
    path = write_table(tmp_path, "programs", [program("a")])
    pq.write_table(pq.read_table(path).drop_columns(["model", "sample"]), path)
    with pytest.raises(DataError, match=r"lacks the column\(s\) model, sample"):
        read_table(tmp_path, "programs")


def test_an_optional_column_that_a_table_lacks_is_null(tmp_path: Path) -> None:
    path = write_table(tmp_path, "programs", [program("a")])
    pq.write_table(pq.read_table(path).drop_columns(["seed"]), path)
    assert read_table(tmp_path, "programs")["seed"].isna().all()


def test_a_table_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path, "programs", [program("a")])
    newer = {b"schema_version": str(SCHEMA_VERSION + 1).encode()}
    pq.write_table(pq.read_table(path).replace_schema_metadata(newer), path)
    with pytest.raises(DataError, match="newer"):
        read_table(tmp_path, "programs")


def test_required_columns_are_those_that_an_import_must_bring() -> None:
    required = {
        name: [field.name for field in schema if not field.nullable]
        for name, schema in SCHEMAS.items()
    }
    assert {"prefill_tokens", "decode_tokens", "step_ms"} <= set(required["steps"])
    assert set(required["stages"]) == {
        "program_id", "stage_index", "stage", "prompt_tokens", "output_tokens", "attempt",
    }  # fmt: skip
    assert pa.types.is_timestamp(SCHEMAS["programs"].field("started_at").type)

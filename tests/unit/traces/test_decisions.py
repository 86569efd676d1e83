"""Reading decision logs, and what is none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decision_rows import request, write_log

from chimera_train.errors import DataError
from chimera_train.traces.decisions import read_decisions


def test_shards_become_one_table_in_order_of_arrival(tmp_path: Path) -> None:
    write_log(tmp_path, [request(f"p{i}", 1000 - i, 9, 3) for i in range(250)])
    assert len(list(tmp_path.iterdir())) == 2
    log = read_decisions(tmp_path)
    assert log["program_id"].tolist() == [f"p{i}" for i in reversed(range(250))]
    assert set(log["bundle"]) == {"demo 1"}
    one = read_decisions(next(tmp_path.iterdir()))
    assert len(one) in (200, 50)


def test_columns_of_later_gateways_are_null(tmp_path: Path) -> None:
    write_log(tmp_path, [request("p", 0, 9, 3)])
    (shard,) = tmp_path.iterdir()
    pq.write_table(pq.read_table(shard).drop_columns(["predicted_low_tokens", "fallbacks"]), shard)
    log = read_decisions(tmp_path)
    assert log["predicted_low_tokens"].isna().all()
    assert log["predicted_tokens"].tolist() == [9]


def refuse(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_decisions(path)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, "holds no decision log")
    refuse(tmp_path / "absent", "holds no decision log")
    shard = tmp_path / "decisions-1.parquet"
    shard.write_bytes(b"PAR1 but no more")
    refuse(tmp_path, "decisions-1.parquet is not a readable Parquet file")
    pq.write_table(pa.table({"time": [1]}), shard)
    refuse(tmp_path, "lacks the column 'program_id'")
    pq.write_table(pa.table({"time": ["noon"], "program_id": ["p"]}), shard)
    refuse(tmp_path, "is no decision log")
    empty = {"time": pa.array([None], pa.timestamp("ms", "UTC")), "program_id": ["p"]}
    pq.write_table(pa.table(empty), shard)
    refuse(tmp_path, "'time' is empty in some rows")
    newer = pa.table({"time": [1], "program_id": ["p"]}).replace_schema_metadata(
        {"schema_version": "2"}
    )
    pq.write_table(newer, shard)
    refuse(tmp_path, "schema version 2, newer than the supported 1")
    pq.write_table(pa.table(empty).slice(0, 0), shard)
    refuse(tmp_path, "holds no decision: send requests")

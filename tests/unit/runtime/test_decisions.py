"""Rows of the decision log reach the disk, whole and in order, whatever happens."""

import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from chimera_train.runtime.decisions import DECISION_SCHEMA, DecisionLog
from chimera_train.runtime.settings import GatewaySettings

NOW = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def row(request_id: int) -> dict:
    return {
        "time": NOW,
        "program_id": "p",
        "request_id": request_id,
        "q": [("one", 0.25), ("two", 0.75)],
        "fallbacks": 0,
    }


def log_to(directory: Path, metadata: dict, rows: int, flush_s: float) -> DecisionLog:
    settings = GatewaySettings(decision_rows=rows, decision_flush_s=flush_s)
    return DecisionLog(directory, metadata, settings)


def read(directory: Path) -> list:
    return [pq.read_table(path) for path in sorted(directory.glob("decisions-*.parquet"))]


def test_shards_and_the_last_rows(tmp_path: Path) -> None:
    with log_to(tmp_path / "new", {"bundle": "demo 3"}, 4, 60) as log:
        for request_id in range(10):
            log.add(row(request_id))
    shards = read(tmp_path / "new")
    assert [shard.num_rows for shard in shards] == [4, 4, 2]
    assert [i for shard in shards for i in shard["request_id"].to_pylist()] == list(range(10))
    assert shards[0].schema.remove_metadata() == DECISION_SCHEMA.remove_metadata()
    assert shards[0].schema.metadata == {b"schema_version": b"1", b"bundle": b"demo 3"}
    first = shards[0].to_pylist()[0]
    assert first["time"] == NOW
    assert dict(first["q"]) == {"one": 0.25, "two": 0.75}
    assert first["engine"] is None


def test_rows_do_not_wait_longer_than_the_flush_interval(tmp_path: Path) -> None:
    with log_to(tmp_path, {}, 1000, 0.05) as log:
        log.add(row(1))
        deadline = time.monotonic() + 10
        while not read(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [shard.num_rows for shard in read(tmp_path)] == [1]
    assert len(read(tmp_path)) == 1


def test_a_disk_that_fails_loses_rows_but_not_the_gateway(tmp_path: Path, caplog) -> None:
    directory = tmp_path / "log"
    with log_to(directory, {}, 1, 60) as log:
        directory.rmdir()
        directory.write_text("in the way")
        log.add(row(1))
        deadline = time.monotonic() + 10
        while not log.dropped and time.monotonic() < deadline:
            time.sleep(0.01)
        directory.unlink()
        log.add(row(2))
    assert log.dropped == 1
    assert "could not be written" in caplog.text
    assert [shard["request_id"].to_pylist() for shard in read(directory)] == [[2]]


def test_nothing_logged_nothing_written(tmp_path: Path) -> None:
    with log_to(tmp_path, {}, 1, 60):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["time", "program_id", "fallbacks"])
def test_what_every_row_has(field: str) -> None:
    assert not DECISION_SCHEMA.field(field).nullable

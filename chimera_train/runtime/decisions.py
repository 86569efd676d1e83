"""The decision log: what was predicted for each request beside what really happened.

Rows go to Parquet shards in one directory, written by a thread so that the event loop never waits
for a disk. A shard appears whole or not at all.
"""

import logging
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from chimera_train.decision_schema import DECISION_SCHEMA
from chimera_train.errors import ConfigError
from chimera_train.files import atomic_path
from chimera_train.runtime.settings import GatewaySettings

__all__ = ["DECISION_SCHEMA", "DecisionLog"]

_log = logging.getLogger(__name__)


class DecisionLog:
    """Writes rows to ``directory``; use it as a context manager, which writes the last ones.

    Args:
        directory: where the shards go; made if needed.
        metadata: added to the metadata of every shard, such as the bundle's name and version.
        settings: rows in a shard, and how long they may wait for it.

    Raises:
        ConfigError: the directory cannot be made.
    """

    def __init__(
        self, directory: Path, metadata: Mapping[str, str], settings: GatewaySettings
    ) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Decisions cannot be logged to {directory}: {error}.") from error
        self._directory = directory
        own = {key.encode(): value.encode() for key, value in metadata.items()}
        self._schema = DECISION_SCHEMA.with_metadata({**DECISION_SCHEMA.metadata, **own})
        self._rows = settings.decision_rows
        self._flush_s = settings.decision_flush_s
        self._shards = 0
        # None ends the thread. Bounded, so that a disk that hangs cannot take all memory.
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(100 * self._rows)
        self._thread = threading.Thread(target=self._write_all, name="decisions", daemon=True)
        self.dropped = 0

    def __enter__(self) -> "DecisionLog":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.put(None)
        self._thread.join()

    def add(self, row: dict[str, Any]) -> None:
        """Log one row, by column name; absent columns are null. Never blocks, never raises."""
        try:
            self._queue.put_nowait(row)
        except queue.Full:
            self.dropped += 1

    def _write_all(self) -> None:
        rows: list[dict[str, Any]] = []
        deadline = 0.0
        while True:
            try:
                wait_s = max(0.0, deadline - time.monotonic()) if rows else None
                row = self._queue.get(timeout=wait_s)
            except queue.Empty:
                rows = self._write(rows)
                continue
            if row is None:
                self._write(rows)
                return
            if not rows:
                deadline = time.monotonic() + self._flush_s
            rows.append(row)
            if len(rows) >= self._rows:
                rows = self._write(rows)

    def _write(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if not rows:
            return []
        # Sorted by name, shards are in order of time; the second part keeps restarts apart.
        name = (
            f"decisions-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{time.time_ns() % 10**9:09}"
        )
        try:
            with atomic_path(self._directory / f"{name}.parquet") as temporary:
                pq.write_table(
                    pa.Table.from_pylist(rows, self._schema), temporary, compression="zstd"
                )
        except (OSError, ConfigError, pa.ArrowException) as error:
            # Requests are served whether or not they can be logged.
            self.dropped += len(rows)
            _log.error("%d decisions could not be written: %s", len(rows), error)
        return []

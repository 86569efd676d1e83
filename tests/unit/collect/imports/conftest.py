"""Importing small files into a directory of the test."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.sources import get_source
from chimera_train.collect.imports.write import import_programs
from chimera_train.collect.privacy import Privacy
from chimera_train.traces.store import read_table


class Imported(NamedTuple):
    report: Report
    programs: pd.DataFrame
    stages: pd.DataFrame
    questions: pd.DataFrame


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., str]:
    """A file of JSON lines, of values or of raw bytes; its name."""

    def write(*values: Any, name: str = "in.jsonl") -> str:
        raw = (v if isinstance(v, bytes) else json.dumps(v).encode() for v in values)
        (tmp_path / name).write_bytes(b"".join(line + b"\n" for line in raw))
        return str(tmp_path / name)

    return write


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Imported]:
    """Import files from a source; every row is either used or reported."""

    def run(
        source: str, *files: str, skip_invalid: bool = False, privacy: Privacy | None = None
    ) -> Imported:
        out = tmp_path / "out"
        counts, report = import_programs(
            get_source(source),
            source,
            files,
            out,
            privacy or Privacy(),
            skip_invalid=skip_invalid,
        )
        assert report.read == report.used + report.left_out.rows + report.invalid.rows
        tables = {name: read_table(out, name) for name in ("programs", "stages", "questions")}
        assert {name: len(table) for name, table in tables.items()} == counts
        # What is absent is None here, whatever pandas makes of it.
        shown = (t.astype(object).where(t.notna(), None) for t in tables.values())
        return Imported(report, *shown)

    return run

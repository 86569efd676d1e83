"""The gateway's decision log as training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from decision_rows import draw_rows, request, write_log

from chimera_train.errors import DataError
from chimera_train.length.rows import stage_rows
from chimera_train.traces.store import load_traces

Run = Callable[..., Any]


def test_the_requests_of_a_program_are_its_stages(tmp_path: Path, imported: Run) -> None:
    rows = [
        request("a", 10, 9, 3, stage="plan", e2e_ms=100.0, ttft_ms=20.0),
        request("b", 50, 9, 4, stage="", workflow=""),
        request("a", 120, 9, 5, stage="code", e2e_ms=80.0, priority=2),
    ]
    got = imported("decisions", str(write_log(tmp_path / "log", rows)))
    assert got.programs["program_id"].tolist() == ["a", "b"]
    assert got.programs["question_id"].tolist() == ["a", "b"]
    assert got.programs["workflow"].tolist() == ["math", "direct"]
    assert got.programs["total_output_tokens"].tolist() == [8, 4]
    assert got.programs["program_latency_ms"].tolist() == pytest.approx([190, 100])
    assert got.programs["score"].tolist() == [None, None]
    assert got.stages["stage"].tolist() == ["plan", "code", "request"]
    assert got.stages["start_ms"].tolist() == pytest.approx([0, 110, 0])
    assert got.stages["ttft_ms"].tolist() == [20, None, None]
    assert got.programs["started_at"][0].isoformat() == "2026-01-02T00:00:00.010000+00:00"


def test_lengths_can_be_fitted_on_it(tmp_path: Path, imported: Run) -> None:
    imported("decisions", str(write_log(tmp_path / "log", draw_rows(1, 20))))
    rows = stage_rows(load_traces(tmp_path / "out"))
    first = rows.drop_duplicates("program_id")
    assert first["target_tokens"].sum() == rows["output_tokens"].sum()


def test_programs_that_failed_are_kept_as_failed(tmp_path: Path, imported: Run) -> None:
    rows = [
        request("a", 0, 9, 3),
        request("a", 1, None, None, engine=None, model=None, prompt_tokens=None, error="down"),
    ]
    got = imported("decisions", str(write_log(tmp_path / "log", rows)))
    assert got.programs["error"].tolist() == ["down"]
    assert got.stages["error"].tolist() == [None, "down"]


def test_what_is_of_no_model_is_left_out(tmp_path: Path, imported: Run) -> None:
    rows = [
        request("a", 0, 9, 3),
        request("b", 0, 9, 3),
        request("b", 1, 9, 3, model="large", engine="two"),
        request("c", 2, None, None, engine=None, model=None, error="queue full"),
    ]
    got = imported("decisions", str(write_log(tmp_path / "log", rows)))
    assert got.programs["program_id"].tolist() == ["a"]
    assert {reason: entry.rows for reason, entry in got.report.left_out.items()} == {
        "of a program that several models worked on": 2,
        "it was refused, or failed before a decision": 1,
    }


def test_a_request_that_nobody_counted_is_invalid(tmp_path: Path, imported: Run) -> None:
    log = write_log(tmp_path / "log", [request("a", 0, 9, None), request("b", 0, 9, 3)])
    with pytest.raises(DataError, match="output_tokens"):
        imported("decisions", str(log))
    assert len(imported("decisions", str(log), skip_invalid=True).programs) == 1


def test_a_directory_without_a_log_is_refused(tmp_path: Path, imported: Run) -> None:
    with pytest.raises(DataError, match="holds no decision log"):
        imported("decisions", str(tmp_path))

"""The public data sets: every row is used or reported, on small files and on the real ones."""

from collections.abc import Callable
from typing import Any

import pytest

from chimera_train.collect.imports.report import Report
from chimera_train.collect.imports.sources import get_source
from chimera_train.errors import DataError

Run = Callable[..., Any]

OUTCOMES = {"a": {"correct": True, "tokens": 5}, "b": {"correct": False, "tokens": 0}}
QUESTIONS = {"idx": 0, "question": "Two and two?", "models": OUTCOMES}
STAGES = {
    "idx": 0,
    "model": "m",
    "correct": True,
    "stages": [
        {"role": "text", "tokens": 4},
        {"role": "execution", "tokens": 1},
        {"role": "code", "tokens": 2},
    ],
}


def test_gsm8k_is_outcomes_without_the_file_of_stages(lines: Run, imported: Run) -> None:
    got = imported("gsm8k", lines(QUESTIONS))
    assert got.programs["model"].tolist() == ["a"]
    assert (got.report.read, got.report.used, got.report.left_out.rows) == (2, 1, 1)


def test_gsm8k_is_programs_with_it(lines: Run, imported: Run) -> None:
    got = imported("gsm8k", lines(QUESTIONS, name="questions.jsonl"), lines(STAGES))
    assert got.stages["output_tokens"].tolist() == [4, 2]
    assert (got.report.read, got.report.used) == (2, 2)


def test_stages_of_an_unknown_question_are_refused(lines: Run, imported: Run) -> None:
    with pytest.raises(DataError, match="its question is in none of the files"):
        imported("gsm8k", lines(QUESTIONS, {**STAGES, "idx": 7}))


def test_mmlu_pro_is_of_all_models(lines: Run, imported: Run) -> None:
    row = {"question": "Is it so?", "options": ["yes", "no"], "models": OUTCOMES}
    got = imported("mmlu-pro", lines(row, row))
    assert got.questions["text"].tolist() == ["Is it so?\nA. yes\nB. no"]
    assert (got.report.read, got.report.used, got.report.left_out.rows) == (4, 1, 3)


def test_mapcoder_reports_what_not_all_models_ran(lines: Run, imported: Run) -> None:
    row = {
        "dataset": "D", "task_id": "1", "question": "Sort.", "solved": True, "model": "a",
        "prompt_tokens": 100, "completion_tokens": 11, "api_calls": 2,
    }  # fmt: skip
    rows = [{**row, "workflow": "both"}, {**row, "workflow": "both", "model": "b"}]
    got = imported("mapcoder", lines(*rows, {**row, "workflow": "alone"}))
    assert got.stages["output_tokens"].tolist() == [5, 6] * 2
    assert got.report.left_out["its workflow was not run by all models"].rows == 1
    with pytest.raises(DataError, match="'api_calls' is missing"):
        imported("mapcoder", lines({n: v for n, v in rows[0].items() if n != "api_calls"}))


def test_the_real_rows_of_mapcoder_are_accounted_for(public_data: Any) -> None:
    report = Report()
    file = str(public_data("workflows", "mapcoder_outcomes.jsonl.gz"))
    found = list(get_source("mapcoder")([file], report))
    assert report.read == 3530 == len(found) + report.left_out.rows

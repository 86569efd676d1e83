"""Results of vllm bench serve."""

from collections.abc import Callable
from typing import Any

import pytest

from chimera_train.errors import DataError

Run = Callable[..., Any]

RESULT = {
    "model_id": "org/model",
    "input_lens": [10, 20],
    "output_lens": [3, 1],
    "ttfts": [0.5, 0.0],
    "itls": [[0.1, 0.1], []],
    "start_times": [100.0, 100.25],
    "generated_texts": ["a b c", ""],
    "errors": ["", "Internal Server Error"],
}


def test_a_request_is_a_program(lines: Run, imported: Run) -> None:
    got = imported("vllm-bench", lines(RESULT, {**RESULT, "model_id": "other"}))
    assert got.report.read == 4
    assert got.programs["model"].tolist() == ["org/model"] * 2 + ["other"] * 2
    assert got.programs["error"].tolist() == [None, "Internal Server Error"] * 2
    assert got.programs["total_output_tokens"].tolist() == [3, 0] * 2
    assert got.programs["score"].isna().all()
    assert got.stages["ttft_ms"][0] == 500
    assert got.stages["e2e_ms"][0] == pytest.approx(700)
    assert got.stages["output_text"][0] == "a b c"
    assert got.questions["metadata"].tolist() == ['{"arrival_s": 0.0}', '{"arrival_s": 0.25}']


def test_a_result_without_details_is_refused(lines: Run, imported: Run) -> None:
    with pytest.raises(DataError, match="it lacks 'input_lens': use --save-detailed"):
        imported("vllm-bench", lines({"model_id": "m", "duration": 3}))


def test_columns_of_unequal_length_are_refused(lines: Run, imported: Run) -> None:
    with pytest.raises(DataError, match="not a detailed result"):
        imported("vllm-bench", lines({**RESULT, "ttfts": [0.5]}))
    with pytest.raises(DataError, match="not a detailed result"):
        imported("vllm-bench", lines({**RESULT, "start_times": [0.5]}))

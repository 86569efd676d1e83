"""What the scripts of the public benchmark make of the public files."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import prepare
import pytest

from chimera_train.errors import DataError
from chimera_train.traces.store import load_traces


def fragments(*pairs):
    return [{"role": role, "tokens": tokens} for role, tokens in pairs]


@pytest.fixture
def data(tmp_path):
    """A folder of public files; call it with a file's name and its rows."""

    def write(name, rows):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)
        return tmp_path / "data"

    return write


def gsm8k(data, stages, correct=True):
    data(prepare.GSM8K, [{"idx": 0, "question": "Two and two?"}])  # 4 tokens
    row = {"idx": 0, "model": "m", "correct": correct, "stages": stages}
    return data(prepare.GSM8K_STAGES, [row])


def test_a_stage_ends_where_the_model_calls_its_tool(data, tmp_path):
    stages = fragments(("text", 5), ("code", 7), ("execution", 3), ("text", 2), ("text", 1))
    folder = gsm8k(data, stages)
    counts = prepare.prepare(folder, "gsm8k", tmp_path / "out")
    assert counts == {"programs": 1, "stages": 2, "questions": 1}
    traces = load_traces(tmp_path / "out")
    assert traces.stages["prompt_tokens"].tolist() == [4, 4 + 12 + 3]
    assert traces.stages["output_tokens"].tolist() == [12, 3]
    assert traces.programs["total_output_tokens"].tolist() == [15]
    assert traces.programs["score"].tolist() == [1.0]


def test_what_does_not_fit_the_context_is_cut_off_and_wrong(data, tmp_path):
    folder = gsm8k(data, fragments(("text", 4000), ("execution", 1), ("text", 500), ("code", 1)))
    prepare.prepare(folder, "gsm8k", tmp_path / "out")
    traces = load_traces(tmp_path / "out")
    assert traces.stages["output_tokens"].tolist() == [4000, 4096 - 4005]
    assert traces.programs["score"].tolist() == [0.0]


def test_a_question_asked_twice_is_taken_once(data, tmp_path):
    outcomes = {model: {"correct": 1, "tokens": 9} for model in prepare.LLAMA}
    rows = [
        {"question": text, "options": ["yes", "no"], "models": outcomes}
        for text in ("Is it so?", "is it  so", "Is it not so?")
    ]
    silent = {**outcomes, prepare.LLAMA[0]: {"correct": 0, "tokens": 0}}
    rows.append({"question": "Nobody answers?", "options": ["yes"], "models": silent})
    prepare.prepare(data(prepare.MMLU_PRO, rows), "mmlu-llama", tmp_path / "out")
    traces = load_traces(tmp_path / "out")
    assert sorted(traces.questions["text"]) == [
        "Is it not so?\nA. yes\nB. no",
        "Is it so?\nA. yes\nB. no",
    ]
    assert len(traces.programs) == 2 * len(prepare.LLAMA)


def test_totals_are_spread_over_the_calls_of_workflows_that_all_models_ran(data, tmp_path):
    row = {
        "dataset": "D", "task_id": "1", "question": "Sort.", "solved": True,
        "prompt_tokens": 100, "completion_tokens": 11, "api_calls": 3,
    }  # fmt: skip
    rows = [
        {**row, "model": "a", "workflow": "both"},
        {**row, "model": "b", "workflow": "both", "question": "Sort!", "solved": False},
        {**row, "model": "a", "workflow": "alone"},
    ]
    prepare.prepare(data(prepare.MAPCODER, rows), "mapcoder", tmp_path / "out")
    traces = load_traces(tmp_path / "out")
    assert traces.questions["text"].tolist() == ["Sort."]
    assert traces.programs.sort_values("model")["score"].tolist() == [1.0, 0.0]
    per_program = traces.stages.groupby("program_id")
    assert per_program["prompt_tokens"].sum().tolist() == [100, 100]
    assert per_program["output_tokens"].agg(list).tolist() == [[3, 4, 4]] * 2


@pytest.mark.parametrize("rows", [[{"idx": 0}], [{"idx": 0, "question": 3}]])
def test_another_file_is_refused_and_nothing_written(data, tmp_path, rows):
    gsm8k(data, fragments(("text", 5)))
    with pytest.raises(DataError, match=r"gsm8k_multi_model\.jsonl\.gz .* is not what"):
        prepare.prepare(data(prepare.GSM8K, rows), "gsm8k", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_folder_is_one_sentence(tmp_path):
    script = Path(prepare.__file__)
    command = [
        sys.executable,
        script,
        "gsm8k",
        "--data",
        tmp_path / "no",
        "--out",
        tmp_path / "out",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3
    assert result.stderr.startswith(f"error: {tmp_path / 'no'} has no gsm8k/")
    assert result.stderr.count("\n") == 1

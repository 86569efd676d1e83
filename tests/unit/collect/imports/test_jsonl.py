"""The project's own format, and what is refused of any."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera_train.collect.imports.sources import get_source
from chimera_train.errors import ChimeraError, ConfigError, DataError
from chimera_train.files import read_json
from chimera_train.traces.store import load_traces

Run = Callable[..., Any]


def stage(**fields: Any) -> dict[str, Any]:
    return {"stage": "solve", "prompt_tokens": 9, "output_tokens": 4} | fields


def program(*stages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "question_id": "q1",
        "question": "Two and two?",
        "task": "t",
        "model": "m",
        "workflow": "w",
        "correct": True,
        "stages": list(stages) or [stage()],
        "metadata": {"level": 3},
    } | fields


def test_a_program_becomes_rows_of_the_tables(lines: Run, imported: Run, tmp_path: Path) -> None:
    got = imported(
        "jsonl",
        lines(
            program(stage(ttft_ms=1.5), stage(stage="check", output_tokens=2, after=[0])),
            program(correct=None, question_id="q2", started_at="2031-05-06T07:08:09Z"),
            program(correct=0.5),
        ),
    )
    assert got.programs["program_id"].tolist() == ["m/w/q1", "m/w/q2", "m/w/q1/1"]
    assert got.programs["sample"].tolist() == [0, 0, 1]
    assert got.programs["total_output_tokens"].tolist() == [6, 4, 4]
    assert got.programs["score"].fillna(-1).tolist() == [1, -1, 0.5]
    assert got.programs["correct"].tolist() == [True, None, False]
    assert str(got.programs["started_at"][1]) == "2031-05-06 07:08:09+00:00"
    assert got.stages["stage_index"].tolist() == [0, 1, 0, 0]
    assert got.stages["ttft_ms"][0] == 1.5
    assert got.stages["after"][1].tolist() == [0]
    assert got.questions["question_id"].tolist() == ["q1", "q2"]
    assert json.loads(got.questions["metadata"][0]) == {"level": 3}
    provenance = read_json(tmp_path / "out" / "provenance.json")
    assert provenance["counts"] == {"programs": 3, "stages": 4, "questions": 2}
    assert provenance["rows"]["read"] == 3
    assert len(load_traces(tmp_path / "out").programs) == 3


def test_without_an_id_equal_questions_are_one(lines: Run, imported: Run) -> None:
    texts = ("Two and two?", "two  and two?", "Two and three?")
    got = imported(
        "jsonl", lines(*(program(question_id=None, question=text) for text in texts[1:]))
    )
    (first, _) = got.questions["question_id"]
    assert first.startswith("t-")
    same = program(question_id=None, question=texts[0])
    assert imported("jsonl", lines(same)).questions["question_id"].tolist() == [first]


def test_a_program_fails_when_all_of_its_calls_do(lines: Run, imported: Run) -> None:
    failed = stage(output_tokens=0, error="HTTP 500")
    tool = {"stage": "run", "tool": "python", "prompt_tokens": 0, "output_tokens": 0}
    got = imported("jsonl", lines(program(failed, tool), program(failed, stage())))
    assert got.programs["error"].tolist() == ["HTTP 500", None]
    assert got.programs["total_output_tokens"].tolist() == [0, 4]


def test_fields_without_a_column_are_reported(lines: Run, imported: Run) -> None:
    got = imported("jsonl", lines(program(stage(cost=1), user="me"), program(stage(cost=2))))
    assert got.report.ignored_fields == {"user": 1, "stages.cost": 2}


def test_compressed_files_and_several_of_them(lines: Run, imported: Run, tmp_path: Path) -> None:
    packed = tmp_path / "more.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(program()).encode()))
    got = imported("jsonl", lines(program(), b""), str(packed))
    assert got.programs["sample"].tolist() == [0, 1]


BAD: list[tuple[Any, str]] = [
    (b'{"model": "m", "stages": [', "not JSON"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"[1, 2]", "not in the expected form (not an object)"),
    (b"null", "it holds nothing"),
    (program(model=""), "model: string should have at least 1 character"),
    ({"model": "m", "question": "?"}, "'stages' is missing"),
    (program({"stage": "s", "output_tokens": 1}), "'stages.prompt_tokens' is missing"),
    (program(stage(output_tokens=-1)), "stages.output_tokens: input should be greater"),
    (program(correct=2), "correct: input should be less than or equal to 1"),
    (program(correct=float("nan")), "correct: input should be a finite number"),
    (program(correct=1, score=0), "'correct' and 'score' contradict each other"),
    (program(question=" ", question_id=None), "it has neither a question_id nor a question"),
    (program(stage(after=[3])), "a stage waits for one that is not there"),
    (program(stage(tool="python")), "stages: a tool has no tokens"),
    (program(question="Another?"), "its question_id has another question text than before"),
    (program(stage(seed=2**70)), "stages.seed: input should be less than"),
    (program(stage(user_text="\ud800")), "not UTF-8"),
    (program(program_id="m/w/q1"), "its program_id was there before"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_named_and_nothing_written(
    lines: Run, imported: Run, tmp_path: Path, bad: Any, reason: str
) -> None:
    file = lines(program(), bad, program())
    with pytest.raises(DataError) as refused:
        imported("jsonl", file)
    message = str(refused.value)
    assert message.startswith("1 of 3 rows are invalid, so nothing is written: 1 row: ")
    assert reason in message
    assert f"{file}:2" in message
    assert "--skip-invalid" in message
    assert not (tmp_path / "out").exists()
    got = imported("jsonl", file, skip_invalid=True)
    assert len(got.programs) == 2
    assert got.report.invalid.rows == 1


@pytest.mark.parametrize(("content", "reason"), [(b"", "it is empty"), (b"nothing\n", "not JSON")])
def test_a_file_without_programs_is_refused(
    lines: Run, imported: Run, tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=f"holds no program that can be imported: .*{reason}"):
        imported("jsonl", str(tmp_path / "in.jsonl"), skip_invalid=True)


def test_files_that_cannot_be_read(imported: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.jsonl cannot be read \(No such file"):
        imported("jsonl", str(tmp_path / "no.jsonl"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(DataError, match=r"cut\.jsonl\.gz cannot be read"):
        imported("jsonl", str(cut))


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown --from 'csv': known are jsonl, vllm-bench"):
        get_source("csv")


def test_more_programs_than_a_row_group(
    lines: Run, imported: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chimera_train.collect.imports.write._BUFFERED_STAGES", 3)
    got = imported("jsonl", lines(*(program(question_id=f"q{n}") for n in range(8))))
    assert got.stages["program_id"].tolist() == [f"m/w/q{n}" for n in range(8)]


def test_a_full_disk_is_one_sentence(
    lines: Run, imported: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chimera_train.collect.imports.write.write_json", full)
    with pytest.raises(ChimeraError, match=r"cannot be written \(No space left on device\)"):
        imported("jsonl", lines(program()))
    assert not (tmp_path / "out").exists()


def test_without_an_id_questions_may_differ_in_a_sign(lines: Run, imported: Run) -> None:
    texts = ("What is 2+2?", "What is 2-2?", "what is  2+2?")
    got = imported("jsonl", lines(*(program(question_id=None, question=text) for text in texts)))
    assert got.questions["text"].tolist() == list(texts[:2])

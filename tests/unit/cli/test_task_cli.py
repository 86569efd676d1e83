import json

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import task
from chimera_train.errors import ConfigError, DataError


@pytest.fixture
def run():
    app = typer.Typer()
    task.register(app)

    def run(*arguments):
        result = CliRunner().invoke(app, ["task", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def mine(tmp_path):
    rows = [{"q": f"{n} + 1?", "a": str(n + 1)} for n in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nkind: text\nsource: {file: rows.jsonl}\nfields: {question: q, answer: a}\n"
    )
    return path


@pytest.fixture
def answers(tmp_path):
    def write(*rows):
        path = tmp_path / "answers.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def test_show_prints_questions(run, mine):
    text = run("show", mine, "--limit", 2)
    assert text.count("--- mine-") == 2
    assert "answer: " in text
    found = json.loads(run("show", mine, "--limit", 4, "--json"))["questions"]
    assert {each["question_id"] for each in found} == {f"mine-{n}" for n in range(4)}
    assert json.loads(run("show", "arithmetic", "--json"))["questions"]


def test_grade_reports_scores_and_verdicts(run, mine, answers, tmp_path):
    given = answers(
        {"question_id": "mine-0", "text": "1"},
        {"question_id": "mine-1", "answer": "3"},
        {"question_id": "mine-1", "text": "2"},
    )
    out = tmp_path / "new" / "verdicts.jsonl"
    found = json.loads(run("grade", mine, given, "--out", out, "--json"))
    assert found["mean_score"] == pytest.approx(2 / 3)
    assert (found["answers"], found["questions"]) == (3, 2)
    assert found["reasons"] == {"correct": 2, "wrong": 1}
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert verdicts[1] == {"question_id": "mine-1", "score": 0.0, "reason": "wrong: answered 3"}
    assert "0.6667" in run("grade", mine, given)


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"question_id": "mine-9", "text": "1"}, "has no question 'mine-9' .*look like 'mine-0'"),
        ({"question_id": "mine-0"}, "needs 'question_id' and 'text'"),
        ({"question_id": "mine-0", "text": 1}, "needs 'question_id' and 'text'"),
    ],
)
def test_answers_that_fit_no_question_are_refused(run, mine, answers, tmp_path, row, wrong):
    given = answers({"question_id": "mine-0", "text": "1"}, row)
    with pytest.raises(DataError, match=rf"answers.jsonl:2.*{wrong}"):
        run("grade", mine, given, "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_files_without_answers_are_refused(run, mine, answers, tmp_path):
    with pytest.raises(DataError, match=r"holds no answers"):
        run("grade", mine, answers())
    with pytest.raises(DataError, match=r"does not exist"):
        run("grade", mine, tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"arithmetic"):
        run("grade", "arithmetic", answers({"question_id": "x", "text": "1"}))
    with pytest.raises(ConfigError, match=r"--allow-code-execution"):
        run("grade", "mbpp", answers({"question_id": "x", "text": "1"}))

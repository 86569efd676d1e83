"""`collect import` as it is typed."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import collect
from chimera_train.errors import ChimeraError, ConfigError, DataError
from chimera_train.files import read_json
from chimera_train.traces.store import read_table


@pytest.fixture
def run(tmp_path: Path) -> Any:
    app = typer.Typer()
    app.callback()(lambda: None)
    collect.register(app)

    def invoke(*arguments: str) -> Any:
        out = ["--out", str(tmp_path / "out")]
        return CliRunner().invoke(app, ["collect", "import", *arguments, *out])

    return invoke


def program(question: str) -> dict[str, Any]:
    stage = {"stage": "s", "prompt_tokens": 3, "output_tokens": 2, "user_text": question}
    return {"model": "m", "question": question, "stages": [stage], "note": 1}


def test_json_tells_what_was_read_and_written(run: Any, lines: Any, tmp_path: Path) -> None:
    result = run(lines(program("a b"), {}), "--skip-invalid", "--json")
    assert result.exit_code == 0, result.exception
    values = json.loads(result.stdout)
    assert (values["programs"], values["invalid"], values["read"], values["used"]) == (1, 1, 2, 1)
    assert values["ignored_fields"] == {"note": 1}
    assert "'model' is missing" in result.stderr
    assert "note (1)" in result.stderr
    again = run(lines(program("a b")))
    assert isinstance(again.exception, ConfigError)
    assert "holds a data set" in str(again.exception)


def test_no_text_and_redact(run: Any, lines: Any, tmp_path: Path) -> None:
    result = run(lines(program("Ann sat")), "--no-text", "--redact", "Ann", "--json")
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["replacements"] == 2
    out = tmp_path / "out"
    assert read_table(out, "stages")["user_text"].isna().all()
    assert len(read_table(out, "stages")["user_features"][0]["words"]) == 2
    assert read_table(out, "questions")["text"].isna().all()
    assert read_json(out / "provenance.json")["privacy"]["texts"] is False
    assert (tmp_path / "out.hash-key").exists()
    stored = b"".join(path.read_bytes() for path in out.iterdir())
    assert b"sat" not in stored.replace(b"satisf", b"")


def test_files_of_another_source_are_asked_about(run: Any, lines: Any) -> None:
    message = str(run(lines({"request": {}}, {"request": {}})).exception)
    assert "2 of 2 rows are invalid, so nothing is written" in message
    assert message.endswith("Are they of another source than --from jsonl?")
    assert "--skip-invalid" in str(run(lines(program("a"), {})).exception)


@pytest.mark.parametrize(
    ("content", "arguments", "kind"),
    [
        ("{}\n", [], DataError),
        ("{}\n", ["--from", "csv"], ConfigError),
        ("{}\n", ["--redact", "("], ConfigError),
    ],
)
def test_refusals_leave_nothing(
    run: Any, tmp_path: Path, content: str, arguments: list[str], kind: type[ChimeraError]
) -> None:
    (tmp_path / "in").write_text(content)
    result = run(str(tmp_path / "in"), *arguments)
    assert type(result.exception) is kind
    assert [path.name for path in tmp_path.iterdir()] == ["in"]

"""`workflow show`, `check` and `schema`: what will run, and what is wrong with it."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import workflow
from chimera_train.errors import ConfigError
from chimera_train.workflows.model import schema_text

SCHEMA = Path(__file__).parents[3] / "docs" / "reference" / "workflow.schema.json"


def run(*arguments: str):
    app = typer.Typer()
    app.callback()(lambda: None)
    workflow.register(app)
    return CliRunner().invoke(app, ["workflow", *arguments])


def test_show_is_text_mermaid_or_json():
    assert "revise  <- verify" in run("show", "math").stdout
    assert run("show", "math", "--mermaid").stdout.startswith("flowchart TD\n")
    values = json.loads(run("show", "math", "--mermaid", "--json").stdout)
    assert values["order"] == ["solve", "verify", "revise"]
    assert values["mermaid"].startswith("flowchart TD")


def test_check_says_what_a_file_is(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nstages:\n  - {id: a, role: r, user: '{question}', max_tokens: 4}\n"
        "answer: [a]\n"
    )
    assert json.loads(run("check", str(path), "--json").stdout) == {
        "ok": True,
        "name": "mine",
        "stages": 1,
    }
    assert "'vote' of 2 stages is right" in run("check", "vote").stdout


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ("[{id: a, role: r, user: '{b}', max_tokens: 4}]", "uses {b}, which is not upstream: add"),
        ("[{id: a, role: r, user: x, max_tokens: 4, depends_on: [b]}]", "unknown stage 'b'"),
        ("[{id: a, role: r, user: x, max_tokens: 4, depends_on: [a]}]", "cycle"),
        ("[{id: a, role: r, user: x, max_token: 4}]", "max_token"),
    ],
)
def test_check_names_file_line_and_mistake(tmp_path, stages, words):
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\nstages: {stages}\nanswer: [a]\n")
    error = run("check", str(path)).exception
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"{path}:")
    assert words in str(error)


def test_the_schema_in_the_reference_is_that_of_the_files():
    """`chimera-train workflow schema > docs/reference/workflow.schema.json` writes it."""
    assert run("schema").stdout == schema_text() == SCHEMA.read_text(encoding="utf-8")

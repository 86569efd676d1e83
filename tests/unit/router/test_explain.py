"""``router explain``, as it is typed, on a router of simulated arithmetic traces."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import router as cli
from chimera_train.errors import DataError
from chimera_train.output import Output
from chimera_train.predict.router import load_router
from chimera_train.router.explain import choices
from chimera_train.router.fit import fit_router
from chimera_train.router.settings import RouterSettings


@pytest.fixture(scope="module")
def fitted(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("explain") / "router"
    settings = RouterSettings(kind="tfidf_logreg", sketch_components=16)
    fit_router(traces, out, settings, Output(as_json=True, quiet=True))
    return out


def explain(*arguments: object, stdin: str | None = None) -> Any:
    app = typer.Typer()
    cli.register(app)
    words = ["router", "explain", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(app, words, input=stdin)


def test_tells_confidences_questions_and_choices(fitted: Path) -> None:
    question = json.loads((fitted / "neighbours.json").read_text())["questions"][0]
    result = explain(question["text"], "--model", fitted, "--neighbours", 3, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    router = load_router(fitted)
    assert list(found["q"]) == list(router.models)
    assert list(found["q"].values()) == pytest.approx(router.predict([question["text"]])[0])
    assert len(found["neighbours"]) == 3
    nearest = found["neighbours"][0]
    assert nearest["question_id"] == question["question_id"]
    assert nearest["similarity"] == pytest.approx(1, abs=1e-5)
    assert set(nearest["success"]) == set(router.models)
    assert found["choices"][0]["tau"] == 0
    assert found["choices"][0]["model"] == "package:pocket-llama"  # of the least latency


def test_people_get_tables_and_stdin_is_read(fitted: Path) -> None:
    result = explain("-", "--router", fitted, stdin="Tom has 3 apples. He buys 4 more.")
    assert result.exit_code == 0
    for words in ("kind tfidf_logreg", "package:pocket-qwen", "training questions like it", "τ"):
        assert words in result.stdout


def test_a_text_of_unknown_words_and_a_router_without_questions(
    fitted: Path, tmp_path: Path
) -> None:
    assert json.loads(explain("", "--model", fitted, "--json").stdout)["neighbours"] == []
    directory = shutil.copytree(fitted, tmp_path / "router")
    (directory / "neighbours.json").unlink()
    result = explain("3 apples", "--model", directory)
    assert "no training question shares a word" in result.stdout


def test_altered_questions_are_refused(fitted: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(fitted, tmp_path / "router")
    (directory / "neighbours.json").write_text("{}")
    result = explain("3 apples", "--model", directory)
    assert isinstance(result.exception, DataError)
    assert "neighbours.json is not the file that" in str(result.exception)
    assert isinstance(explain("x", "--model", tmp_path / "nowhere").exception, DataError)


def test_choices_are_those_of_algorithm_1() -> None:
    models, loads = ("fast", "slow", "slower"), [10.0, 20.0, 40.0]
    assert choices(models, [0.5, 0.7, 0.72], loads, 0.05) == [
        {"tau": 0.0, "model": "fast"},
        {"tau": 1.0, "model": "slow"},
    ]
    assert choices(models, [0.5, 0.7, 0.8], loads, 0.05)[-1] == {"tau": 3.0, "model": "slower"}
    assert choices(models, [0.5, 0.7, 0.8], loads, math.inf) == [{"tau": 0.0, "model": "fast"}]
    # Of equally loaded ones, the most confident at once.
    assert choices(models, [0.5, 0.7, 0.8], [1.0, 1.0, 1.0], 0.05) == [
        {"tau": 0.0, "model": "slower"}
    ]

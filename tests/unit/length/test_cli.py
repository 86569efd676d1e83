import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import evaluate, fit
from chimera_train.errors import ConfigError, DataError
from chimera_train.length.settings import LengthSettings
from chimera_train.traces.split import HOLDOUT_FOLD, fold

PARAMS = "fit_length: {n_estimators: 8, sketch_components: 4, n_jobs: 1}\n"
BASELINES = ("fcfs", "prompt_length", "stage_mean", "stage_median")
HEADER = ["of", "predicted", "95", "%", "interval", *BASELINES]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    fit.register(app)
    evaluate.register(app)
    return app


@pytest.fixture
def arguments(learnable: Callable[..., Any], tmp_path: Path) -> list[str]:
    (tmp_path / "params.yaml").write_text(PARAMS)
    traces = learnable(30).write(tmp_path / "traces")
    return [
        "fit", "length", "--traces", str(traces), "--out", str(tmp_path / "out"),
        "--params", str(tmp_path / "params.yaml"),
    ]  # fmt: skip


def invoke(app: typer.Typer, *arguments: Any) -> str:
    """What the command prints on stdout."""
    result = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def words(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_json_is_one_object(app: typer.Typer, arguments: list[str], tmp_path: Path) -> None:
    printed = json.loads(invoke(app, *arguments, "--json"))
    assert printed == json.loads((tmp_path / "out" / "metrics.json").read_text())
    manifest = json.loads((tmp_path / "out" / "length.json").read_text())
    assert manifest["settings"]["n_estimators"] == 8


def test_people_see_the_predictions_beside_the_baselines(
    app: typer.Typer, arguments: list[str], tmp_path: Path
) -> None:
    plot, quality = tmp_path / "lengths.png", tmp_path / "quality.png"
    printed = invoke(app, *arguments, "--curve", "--plot", plot, "--quality-plot", quality)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    lines = words(printed)
    assert HEADER in lines
    distance, baselines = metrics["kendall_distance"], metrics["baselines"]
    for name, figure, interval, others in (
        ("all", distance["overall"], distance["ci"], baselines),
        (
            "package:small",
            distance["per_model"]["package:small"],
            distance["intervals"]["per_model"]["package:small"],
            metrics["baselines_per_model"]["package:small"],
        ),
    ):
        shown = [f"{figure:.4g}", f"{interval[0]:.3f}", "to", f"{interval[1]:.3f}"]
        assert [name, *shown, *(f"{other:.4g}" for other in others.values())] in lines
    assert ["programs", "kendall_distance", "stage_median", "prompt_length"] in lines
    for path in (plot, quality):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("estimator", ["forest", "boosted"])
def test_a_search_shows_what_it_tried_and_writes_the_best(
    app: typer.Typer, arguments: list[str], tmp_path: Path, estimator: str
) -> None:
    (tmp_path / "params.yaml").write_text(
        f"fit_length: {{n_estimators: 4, sketch_components: 4, n_jobs: 1, estimator: {estimator},"
        " boosted: {n_rounds: 50, max_leaves: 4}}\n"
    )
    printed = invoke(app, *arguments, "--search", 2)
    manifest = json.loads((tmp_path / "out" / "length.json").read_text())
    found = manifest["metrics"]["search"]
    assert len(found["trials"]) == 2
    given, other = found["trials"]
    assert given["gain"] == 0
    searched = given.keys() - {"kendall_distance", "gain", "gain_spread"}
    chosen = other if found["changed"] else given
    used = manifest["settings"]["boosted"] if estimator == "boosted" else manifest["settings"]
    assert {name: used[name] for name in searched} == {name: chosen[name] for name in searched}
    assert any(set(line) == set(given) for line in words(printed))
    LengthSettings.model_validate(manifest["settings"])


@pytest.mark.parametrize("command", ["length", "router"])
def test_a_wrong_setting_is_named(
    app: typer.Typer, arguments: list[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "params.yaml").write_text(f"fit_{command}:\n  trees: 5\n")
    arguments[1] = command
    with pytest.raises(ConfigError, match=rf"params.yaml:2: fit_{command}.trees"):
        invoke(app, *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{sketch: encoder}", "'encoder' names the encoder of 'sketch: encoder'"),
        ("{encoder: /models/x}", "'encoder' names the encoder of 'sketch: encoder'"),
        ("{estimator: gbdt}", r"fit_length\.estimator: input should be 'forest' or 'boosted'"),
        ("{boosted: {trees: 3}}", r"fit_length\.boosted\.trees"),
        ("{max_features: 1.5}", r"fit_length\.max_features: .*less than or equal to 1"),
        ("{sketch: encoder, encoder: no/such/dir}", r"fit_length\.encoder: 'no/such/dir'"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    app: typer.Typer, arguments: list[str], tmp_path: Path, settings: str, message: str
) -> None:
    (tmp_path / "params.yaml").write_text(f"fit_length: {settings}\n")
    with pytest.raises(ConfigError, match=f"(?i){message}"):
        invoke(app, *arguments)
    assert not (tmp_path / "out").exists()


def test_a_ranker_has_nothing_to_search(
    app: typer.Typer, arguments: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"--search .* a ranker has none"):
        invoke(app, *arguments, "--target", "rank", "--search", 2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["remaining", "rank"])
def test_a_directory_is_judged_on_questions_that_it_was_not_fitted_on(
    app: typer.Typer,
    arguments: list[str],
    tmp_path: Path,
    learnable: Callable[..., Any],
    target: str,
) -> None:
    invoke(app, *arguments, "--target", target)
    judge = ["evaluate", "length", "--model", tmp_path / "out", "--traces"]
    held_out = sum(fold(f"q{number}") == HOLDOUT_FOLD for number in range(30))
    assert held_out
    same = json.loads(invoke(app, *judge, tmp_path / "traces", "--json"))
    assert same["n_programs"] == 2 * held_out

    others = learnable(30, seed=1, prefix="other").write(tmp_path / "others")
    plot = tmp_path / "plot.png"
    printed = invoke(app, *judge, others, "--plot", plot)
    assert HEADER in words(printed)
    assert printed.startswith("60 programs")
    assert plot.read_bytes().startswith(b"\x89PNG")

    known = learnable(30)
    for table in (known.programs, known.questions):
        table[:] = [row for row in table if fold(row["question_id"]) != HOLDOUT_FOLD]
    with pytest.raises(DataError, match="fitted on every question of these traces"):
        invoke(app, *judge, known.write(tmp_path / "known"))

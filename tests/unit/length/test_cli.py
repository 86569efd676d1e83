import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import fit
from chimera_train.errors import ConfigError

PARAMS = "fit_length: {n_estimators: 8, sketch_components: 4, n_jobs: 1}\n"


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    fit.register(app)
    return app


@pytest.fixture
def arguments(learnable: Callable[..., Any], tmp_path: Path) -> list[str]:
    (tmp_path / "params.yaml").write_text(PARAMS)
    traces = learnable(30).write(tmp_path / "traces")
    return [
        "fit", "length", "--traces", str(traces), "--out", str(tmp_path / "out"),
        "--params", str(tmp_path / "params.yaml"),
    ]  # fmt: skip


def test_json_is_one_object(app: typer.Typer, arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert json.loads(result.stdout) == json.loads((tmp_path / "out" / "metrics.json").read_text())
    manifest = json.loads((tmp_path / "out" / "length.json").read_text())
    assert manifest["settings"]["n_estimators"] == 8


def test_people_see_the_forest_beside_the_baselines(
    app: typer.Typer, arguments: list[str], tmp_path: Path
) -> None:
    plot = tmp_path / "lengths.png"
    result = CliRunner().invoke(app, [*arguments, "--plot", str(plot)], catch_exceptions=False)
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["model", "forest", "fcfs", "prompt_length", "stage_mean", "stage_median"] in lines
    distance, baselines = metrics["kendall_distance"], metrics["baselines"]
    figures = [distance["overall"], *baselines.values()]
    assert ["all", *(f"{figure:.4g}" for figure in figures)] in lines
    figures = [distance["per_model"]["package:small"]]
    figures += metrics["baselines_per_model"]["package:small"].values()
    assert ["package:small", *(f"{figure:.4g}" for figure in figures)] in lines
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["length", "router"])
def test_a_wrong_setting_is_named(
    app: typer.Typer, arguments: list[str], tmp_path: Path, command: str
) -> None:
    (tmp_path / "params.yaml").write_text(f"fit_{command}:\n  trees: 5\n")
    arguments[1] = command
    with pytest.raises(ConfigError, match=rf"params.yaml:2: fit_{command}.trees"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert not (tmp_path / "out").exists()

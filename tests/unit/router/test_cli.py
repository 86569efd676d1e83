import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import evaluate, fit
from chimera_train.cli.router_figures import router_summary
from chimera_train.output import Output
from chimera_train.router.labels import router_data, split
from chimera_train.traces.store import load_traces


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    fit.register(app)
    evaluate.register(app)
    return app


def invoke(app: typer.Typer, *arguments: Any) -> str:
    """What the command prints on stdout."""
    result = CliRunner().invoke(app, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def fitted(app: typer.Typer, traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A router of words, its printed figures and its plot."""
    out = tmp_path_factory.mktemp("cli") / "router"
    params = out.parent / "params.yaml"
    params.write_text("fit_router: {sketch_components: 4, boosted: {max_rounds: 5}}")
    printed = invoke(
        app, "fit", "router", "--traces", traces, "--out", out, "--kind", "tfidf_logreg",
        "--params", params, "--quality-plot", out.parent / "quality.png", "--json",
    )  # fmt: skip
    assert json.loads(printed) == json.loads((out / "metrics.json").read_text())
    return out


@pytest.fixture(scope="module")
def evaluated(app: typer.Typer, fitted: Path, traces: Path) -> dict[str, Any]:
    plot = fitted.parent / "evaluated.png"
    printed = invoke(
        app, "evaluate", "router", "--router", fitted, "--traces", traces, "--plot", plot, "--json"
    )
    return json.loads(printed)


def test_evaluate_finds_the_questions_that_were_held_out(
    evaluated: dict[str, Any], fitted: Path, traces: Path
) -> None:
    found, fit_found = evaluated, json.loads((fitted / "metrics.json").read_text())
    assert found["n_questions"] == len(split(router_data(load_traces(traces))).holdout.texts)
    for name in ("map_macro", "ci", "ap", "base_rate", "ece", "routing_gain"):
        assert found[name] == fit_found[name]
    assert set(found["stability"]) == {"typos", "case", "white_space", "options", "politeness"}
    for plot in ("evaluated.png", "quality.png"):
        assert (fitted.parent / plot).read_bytes().startswith(b"\x89PNG")


def test_people_see_differences_levels_ceiling_and_stability(
    evaluated: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Output().result(evaluated, *router_summary(evaluated))
    printed = capsys.readouterr().out
    for words in (
        "router - prior",
        "calibration error (ECE): raw",
        "mixed at random",
        "one half of the samples ranks the other",
        "politeness",
    ):
        assert words in printed


def test_a_router_that_ranks_no_better_says_so(fitted: Path) -> None:
    metrics = json.loads((fitted / "metrics.json").read_text())
    worse = metrics | {"map_macro": 0.1}
    assert f"NOT better than {' and '.join(metrics['baselines'])} at ranking" in router_summary(
        worse
    )

"""Verdicts on drawn logs, and the command."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from decision_rows import draw_rows, request, write_log
from typer.testing import CliRunner

from chimera_train.cli.main import app
from chimera_train.collect.imports.sources import get_source
from chimera_train.collect.imports.write import import_programs
from chimera_train.collect.privacy import Privacy
from chimera_train.errors import DataError, QualityGateError
from chimera_train.live.evaluate import evaluate_live, read_outcomes
from chimera_train.live.settings import EvaluateLiveSettings
from chimera_train.live.training import Training, load_training
from chimera_train.traces.decisions import read_decisions

SETTINGS = EvaluateLiveSettings()


def judge(rows: list[dict], directory: Path, training: Training | None = None) -> dict[str, Any]:
    log = read_decisions(write_log(directory, rows))
    return evaluate_live(log, training or Training(), None, SETTINGS).figures


def states(figures: dict[str, Any], state: str) -> list[str]:
    return [check["name"] for check in figures["checks"] if check["state"] == state]


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    """The training data: what a log of the same kind of traffic is imported as."""
    directory = tmp_path_factory.mktemp("training")
    log = write_log(directory / "log", draw_rows(7, 600))
    import_programs(
        get_source("decisions"), "decisions", [str(log)], directory / "traces", Privacy(),
        skip_invalid=False,
    )  # fmt: skip
    return directory / "traces"


@pytest.mark.parametrize("seed", range(2))
def test_traffic_of_the_training_distribution_is_healthy(seed, traces, tmp_path) -> None:
    training = replace(load_training(None, traces), distance=0.1)
    figures = judge(draw_rows(seed, 300), tmp_path, training)
    assert figures["verdict"] == "healthy"
    assert not states(figures, "drifting") + states(figures, "broken")
    # Lognormal noise of 0.2, and an interval of ±1.2816 of it.
    assert figures["length"]["interval_coverage"]["overall"] == pytest.approx(0.8, abs=0.05)


def test_twice_as_long_is_drifting(traces, tmp_path) -> None:
    figures = judge(draw_rows(1, 300, scale=2.0), tmp_path, load_training(None, traces))
    assert figures["verdict"] == "drifting"
    assert set(states(figures, "drifting")) >= {
        "bias, %",
        "share in the 80 % interval",
        "PSI of output_tokens, small",
        "PSI of prompt_tokens, small",
        "outside the training data: prompt_tokens",
    }


def test_another_mix_of_stages_is_drifting(traces, tmp_path) -> None:
    figures = judge(draw_rows(1, 300, stages=0.0), tmp_path, load_training(None, traces))
    assert "PSI of stage, small" in states(figures, "drifting")


def test_a_distance_beyond_that_of_the_fit_is_drifting(tmp_path) -> None:
    rows = draw_rows(1, 300)
    figures = judge(rows, tmp_path, Training(distance=0.01))
    low, high = figures["length"]["kendall_distance"]["ci"]
    assert 0.06 < low < figures["length"]["kendall_distance"]["overall"] < high < 0.25
    assert states(figures, "drifting") == ["Kendall-τ distance"]


def test_an_order_no_better_than_chance_is_broken(tmp_path) -> None:
    rows = draw_rows(1, 300)
    tokens = [row["predicted_tokens"] for row in rows]
    for row, other in zip(rows, reversed(tokens), strict=True):
        row["predicted_tokens"] = other
    assert judge(rows, tmp_path)["verdict"] == "broken"


def test_many_errors_are_broken_and_clients_that_left_are_not(tmp_path) -> None:
    rows = draw_rows(1, 300)
    left = [
        request(f"c{i}", i, 9, None, error="cancelled: the client went away") for i in range(90)
    ]
    assert judge(rows + left, tmp_path / "left")["verdict"] == "healthy"
    failed = [row | {"error": "engine 'one' went away"} for row in left]
    figures = judge(rows + failed, tmp_path / "failed")
    assert figures["verdict"] == "broken"
    assert states(figures, "broken") == ["share of errors"]


def test_few_programs_are_unknown(tmp_path) -> None:
    figures = judge(draw_rows(1, 20, scale=3.0), tmp_path)
    assert figures["verdict"] == "unknown"
    assert figures["programs_completed"] == 20


def test_a_log_of_which_no_program_completed(tmp_path, traces) -> None:
    rows = [request("a", 0, None, None, engine=None, model=None, error="refused", e2e_ms=0.0)]
    figures = judge(rows, tmp_path, load_training(None, traces))
    assert figures["verdict"] == "unknown"
    assert (figures["length"], figures["drift"]) == (None, None)


@pytest.fixture
def evaluate(tmp_path: Path) -> Callable[..., Any]:
    """Run ``evaluate live`` on rows."""

    def run(rows: list[dict], *options: str) -> Any:
        log = write_log(tmp_path / "log", rows)
        return CliRunner().invoke(app, ["evaluate", "live", "--decisions", str(log), *options])

    return run


def test_the_command(evaluate, traces, tmp_path) -> None:
    rows = [row | {"q": [("one", 0.75)]} for row in draw_rows(1, 200)]
    outcomes = tmp_path / "outcomes.jsonl"
    lines = [{"program_id": f"p{i}", "score": float(i % 4 > 0)} for i in range(200)]
    outcomes.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot = tmp_path / "live.png"
    told = ["--traces", str(traces), "--outcomes", str(outcomes)]
    result = evaluate(rows, *told, "--json", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["verdict"] == "healthy"
    assert figures["router"]["ece"] == pytest.approx(0)
    assert plot.read_bytes().startswith(b"\x89PNG")
    shown = evaluate([], *told).stdout
    assert "verdict: healthy" in shown
    assert "no: the router chose" in shown


def test_the_command_fails_where_it_is_drifting(evaluate) -> None:
    result = evaluate(draw_rows(1, 150, scale=2.0), "--json")
    assert isinstance(result.exception, QualityGateError)
    assert json.loads(result.stdout)["verdict"] == "drifting"
    assert "bias, %" in str(result.exception)


def test_the_limits_are_settings(evaluate, tmp_path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("evaluate_live: {bias_percent: 200, coverage_below: 0.8}\n")
    result = evaluate(draw_rows(1, 150, scale=2.0), "--params", str(params))
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"program_id": "p", "score": 2}\n',
            "the score 2 of program 'p' is not between",
        ),
        ("a.jsonl", '{"program_id": "p", "score": null}\n', "is not between 0 and 1"),
        ("a.jsonl", '{"program": "p", "score": 1}\n', "lacks the column 'program_id'"),
        ("a.csv", "program_id,score\np,high\n", "the score high of program 'p'"),
    ],
)
def test_outcomes_that_are_none(tmp_path, name, content, message) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        read_outcomes(tmp_path / name)


def test_the_last_outcome_of_a_program_counts(tmp_path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text("program_id,score\n7,0\n8,1\n7,0.5\n")
    pd.testing.assert_series_equal(
        read_outcomes(path), pd.Series({"7": 0.5, "8": 1.0}), check_names=False
    )

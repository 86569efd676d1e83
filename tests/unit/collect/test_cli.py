"""`collect traces` and `collect steps`: flags over parameters, one JSON object, clear refusals."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import collect
from chimera_train.collect.jobs import CollectSettings
from chimera_train.collect.sharing import SharingSettings
from chimera_train.collect.steps import StepsSettings
from chimera_train.errors import ChimeraError
from chimera_train.files import read_json


class Cli:
    def __init__(self, directory: Path, engine: Any) -> None:
        self.directory = directory
        self.out = directory / "out"
        (directory / "pool.yaml").write_text(
            f"engines:\n  - {{name: one, model: fake, base_url: '{engine.base_url}'}}\n"
            + "".join(
                f"  - {{name: {name}, model: fake, device_group: {group},"
                f" base_url: '{engine.base_url}'}}\n"
                for name, group in (("a", "gpu"), ("b", "gpu"), ("c", "single"))
            )
        )
        (directory / "params.yaml").write_text(
            "collect_traces: {limit: 3, temperature: 0.5, samples: 2, seed: 4}\n"
            "collect_steps: {budget_s: 5}\n"
            "other: {limit: 9}\n"
        )
        self.app = typer.Typer()
        self.app.callback()(lambda: None)
        collect.register(self.app)

    def __call__(self, command: str, *arguments: str) -> Any:
        common = ["--pool", str(self.directory / "pool.yaml"), "--out", str(self.out)]
        return CliRunner().invoke(self.app, ["collect", command, *common, *arguments])

    def traces(self, *arguments: str) -> Any:
        return self("traces", "--task", "arithmetic", "--workflow", "direct", *arguments)

    def settings(self) -> Any:
        return read_json(self.out / "provenance.json")["settings"]


@pytest.fixture
def cli(tmp_path: Path, engine: Any) -> Cli:
    return Cli(tmp_path, engine)


def test_json_is_one_object_with_the_counts(cli: Cli) -> None:
    result = cli.traces("--limit", "4", "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert {name: values[name] for name in ("programs", "stages", "failed", "resumed")} == {
        "programs": 4,
        "stages": 4,
        "failed": 0,
        "resumed": 0,
    }
    assert values["tokens_per_s"] > 0
    assert 0 <= values["mean_score"] <= 1
    values = json.loads(cli.traces("--limit", "4", "--json").stdout)
    assert (values["programs"], values["resumed"], values["tokens_per_s"]) == (4, 4, None)


def test_the_defaults_in_the_help_are_those_of_the_settings(cli: Cli) -> None:
    app = typer.main.get_command(cli.app)
    for command, *settings in (
        ("traces", CollectSettings()),
        ("steps", StepsSettings(), SharingSettings()),
    ):
        options = app.commands["collect"].commands[command].params  # type: ignore[attr-defined]
        shown = {o.name: float(o.show_default) for o in options if isinstance(o.show_default, str)}
        defaults = {name: value for one in settings for name, value in one.model_dump().items()}
        assert shown == {name: defaults[name] for name in shown}
        assert (
            set(shown) >= {"traces": {"limit", "samples"}, "steps": {"budget_s", "rounds"}}[command]
        )


def test_without_json_it_is_a_table(cli: Cli) -> None:
    result = cli.traces("--limit", "4", "--quiet")
    assert result.exit_code == 0
    assert "programs" in result.stdout
    assert str(cli.out) in result.stdout
    assert result.stderr == ""


def test_flags_go_before_the_parameter_file(cli: Cli) -> None:
    params = str(cli.directory / "params.yaml")
    assert cli.traces("--params", params, "--limit", "2", "--no-text").exit_code == 0
    settings = cli.settings()
    assert settings["limit"] == 2
    assert (settings["samples"], settings["temperature"], settings["seed"]) == (2, 0.5, 4)
    assert settings["texts"] is False


def test_figures_are_tracked_on_request(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []

    class Run:
        metrics = staticmethod(logged.append)
        artifact = staticmethod(logged.append)

    @contextmanager
    def stage_run(*arguments: Any) -> Iterator[Run]:
        logged.append(arguments)
        yield Run()

    tracking = ModuleType("chimera_train.tracking")
    tracking.stage_run = stage_run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "chimera_train.tracking", tracking)
    assert cli.traces("--limit", "2", "--track", "sqlite:///x.db").exit_code == 0
    (uri, stage, settings), metrics, artifact = logged
    assert (uri, stage) == ("sqlite:///x.db", "collect_traces")
    assert (settings["task"], settings["workflow"], settings["limit"]) == (
        "arithmetic",
        "direct",
        2,
    )
    assert metrics["programs"] == 2
    assert artifact == cli.out / "provenance.json"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--limit", "0"], "limit: input should be greater than 0"),
        (["--limit", "-3"], "limit"),
        (["--samples", "0"], "samples"),
        (["--samples", "2"], "temperature above 0"),
        (["--concurrency", "0"], "concurrency"),
        (["--temperature", "-1"], "temperature"),
        (["--engine", "two"], "no engine 'two'"),
        (["--task", "nonsense"], "nonsense"),
        (["--workflow", "nonsense"], "Unknown workflow 'nonsense'"),
        (["--workflow", "nonsense.yaml"], "does not exist"),
        (["--pool", "nonsense.yaml"], "does not exist"),
        (["--params", "nonsense.yaml"], "does not exist"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_exit_code_2_and_writes_nothing(
    cli: Cli, engine: Any, arguments: list[str], words: str
) -> None:
    error = cli.traces(*arguments).exception
    assert isinstance(error, ChimeraError)
    assert error.exit_code == 2
    assert words in str(error)
    assert not cli.out.exists()
    assert engine.bodies == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "two"], "no engine 'two'"),
        (["--engine", "one"], "already runs"),
        (["--engine", "one", "--budget-s", "0"], "budget_s: input should be greater than 0"),
        ([], "exactly one of --engine and --together"),
        (["--engine", "one", "--together", "gpu"], "exactly one of --engine and --together"),
        (["--engine", "one", "--rounds", "3"], "--rounds belongs to --together"),
        (["--together", "gpu", "--budget-s", "3"], "--budget-s belongs to --engine"),
        (["--together", "gpu", "--precision-percent", "3"], "--precision-percent belongs to"),
        (["--engine", "one", "--precision-percent", "0"], "precision_percent: input should be"),
        (["--engine", "one", "--precision-percent", "3"], "is for engines that are started here"),
        (["--together", "gpu", "--rounds", "1"], "rounds: input should be greater than or equal"),
        (["--together", "typo"], "no device group 'typo': it has gpu, single"),
        (["--together", "single"], "nothing to measure together"),
    ],
)
def test_steps_refuses_what_it_cannot_profile(cli: Cli, arguments: list[str], words: str) -> None:
    error = cli("steps", *arguments).exception
    assert isinstance(error, ChimeraError)
    assert error.exit_code == 2
    assert words in str(error)
    assert not cli.out.exists()


def test_sharing_is_one_object_and_a_table(cli: Cli) -> None:
    result = cli("steps", "--together", "gpu", "--rounds", "3", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values == {**read_json(cli.out / "sharing.json"), "out": str(cli.out)}
    assert (values["device_group"], list(values["engines"]), values["rounds"]) == (
        "gpu",
        ["a", "b"],
        3,
    )
    assert [len(values[key]) for key in ("slowdown", "quartiles")] == [2, 2]
    cli.out = cli.directory / "again"
    text = cli("steps", "--together", "gpu", "--rounds", "3", "--quiet").stdout
    assert text.splitlines()[1].split()[:2] == ["1", "1"]

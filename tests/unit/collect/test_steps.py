"""Profiling: bad input is refused before an engine starts. What it measures: tests/integration."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chimera_train.collect.steps import StepsSettings, collect_steps
from chimera_train.errors import ConfigError
from chimera_train.output import Output
from chimera_train.pool.schema import EngineSpec, Launch, Pool


def profile(out: Path, engine: str = "a", **launch: Any) -> None:
    specs = [
        EngineSpec(name="a", model="org/model", launch=Launch(**launch)),
        EngineSpec(name="b", model="org/model", base_url="http://127.0.0.1:9/v1"),
    ]
    collect_steps(Pool(engines=specs), engine, out, StepsSettings(), output=Output())


@pytest.mark.parametrize(
    ("engine", "launch", "words"),
    [
        ("c", {}, "no engine 'c': it has a, b"),
        ("b", {}, "'b' already runs"),
        ("a", {"args": {"scheduler-cls": "x.Y"}}, "remove launch.args.scheduler_cls"),
        ("a", {"python": "no-such-python"}, "no-such-python"),
    ],
)
def test_engines_that_cannot_be_profiled(
    tmp_path: Path, engine: str, launch: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        profile(tmp_path / "out", engine, **launch)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds a data set"):
        profile(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        profile(tmp_path / "file" / "out")


@pytest.mark.parametrize("budget_s", [0, -1, float("nan")])
def test_budgets_that_make_no_sense(budget_s: float) -> None:
    with pytest.raises(ValidationError):
        StepsSettings(budget_s=budget_s)

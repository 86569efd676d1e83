import subprocess
import sys

import pytest

import chimera_train
from chimera_train.cli import main as module
from chimera_train.cli.main import main
from chimera_train.errors import (
    ChimeraError,
    ConfigError,
    DataError,
    EngineError,
    QualityGateError,
)

COMMANDS = (
    "doctor",
    "pool",
    "collect",
    "fit",
    "calibrate",
    "simulate",
    "export",
    "bundle",
    "serve",
)


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "chimera_train", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_help_names_every_command_and_imports_nothing_heavy():
    heavy = {"numpy", "pandas", "pyarrow", "torch", "sklearn", "httpx2", "numba", "mlflow", "yaml"}
    code = (
        "import sys; sys.argv = ['chimera-train', '--help']\n"
        "from chimera_train.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stderr.strip() == "[]"
    for command in COMMANDS:
        assert f" {command} " in result.stdout


def test_version():
    assert run("--version").stdout == f"chimera-train {chimera_train.__version__}\n"


def test_unknown_commands_and_options_are_usage_errors():
    assert run("colect").returncode == 2
    assert run("doctor", "--no-such-option").returncode == 2


def test_a_known_error_is_one_sentence_and_its_exit_code():
    result = run("pool", "check", "no-such-pool.yaml")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "error: no-such-pool.yaml does not exist.\n"


def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    result = run("fit", "router", "--traces", "none", "--out", "r", "--quality-plot", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr == f"error: {tmp_path} is a directory: give the path of a file to write.\n"


def test_debug_shows_where_an_error_came_from():
    result = run("--debug", "pool", "check", "no-such-pool.yaml")
    assert result.returncode != 0
    assert "Traceback" in result.stderr
    assert "FileNotFoundError" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ChimeraError("x"), 1),
        (ConfigError("x"), 2),
        (DataError("x"), 3),
        (EngineError("x"), 4),
        (QualityGateError("x"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_its_exit_code(error, code, monkeypatch):
    def failing() -> None:
        raise error

    monkeypatch.setattr(module, "app", failing)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code

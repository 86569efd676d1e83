"""The pipeline against the real DVC."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(*command: str) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def commands() -> list[list[str]]:
    """What `dvc repro` would run from scratch, in order."""
    printed = run(sys.executable, "-m", "dvc", "repro", "--dry", "--force")
    return [line.removeprefix("> ").split() for line in printed.splitlines() if line[:2] == "> "]


def test_every_stage_comes_after_those_whose_results_it_reads(commands):
    stages = [" ".join(command[1:3]) for command in commands]
    assert stages.count("collect steps") == 4  # three engines, and all of them together
    assert stages.count("calibrate --steps") == 3
    assert {stage.split()[0] for stage in stages} >= {"fit", "simulate", "export"}
    made: list[Path] = []
    for command in commands:
        made += [Path(command[command.index("--out") + 1])] if "--out" in command else []
    done: set[Path] = set()
    for command in commands:
        own = Path(command[command.index("--out") + 1]) if "--out" in command else None
        for path in [path for path in made if path != own]:
            reads = any(path in (Path(word), *Path(word).parents) for word in command)
            assert not reads or path in done, (command, path)
        done |= {own} if own is not None else set()


def test_every_stage_uses_options_that_its_command_has(commands):
    known: dict[tuple[str, ...], str] = {}
    for program, *rest in commands:
        assert program == "chimera-train"
        name = tuple(word for word in rest[:2] if not word.startswith("--"))
        if name not in known:
            known[name] = run(sys.executable, "-m", "chimera_train", *name, "--help")
        for word in rest:
            if word.startswith("--"):
                assert f"{word} " in known[name], f"{' '.join(name)} has no option {word}"

"""A pool of stand-in engines, and a way to see that no process of them is left."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chimera_train.pool.schema import EngineSpec, Launch, Pool

STUB = Path(__file__).parent / "stub"


@pytest.fixture
def pids_path(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture
def stub_pool(pids_path: Path, model_dir: Path) -> Callable[..., Pool]:
    """A pool of engines called a, b, ...; keywords are environment variables of the stub."""

    def make(
        n_engines: int = 1,
        *,
        port: int | str = "auto",
        ready_timeout_s: float = 60,
        **environment: str,
    ) -> Pool:
        env = {"PYTHONPATH": str(STUB), "STUB_PIDS": str(pids_path), **environment}
        return Pool(
            engines=[
                EngineSpec(
                    name="abcdef"[index],
                    model=str(model_dir),
                    launch=Launch(
                        python=sys.executable,
                        port=port,  # type: ignore[arg-type]
                        args={"max_num_seqs": 4, "enforce_eager": True},
                        env=env,
                        ready_timeout_s=ready_timeout_s,
                    ),
                )
                for index in range(n_engines)
            ]
        )

    return make


@pytest.fixture
def pids(pids_path: Path) -> Callable[[], list[int]]:
    """The processes that stubs of this test have started."""
    return lambda: (
        [int(line) for line in pids_path.read_text().split()] if pids_path.exists() else []
    )


@pytest.fixture
def all_gone() -> Callable[[list[int]], bool]:
    """Whether none of some processes exists; waits up to 20 s for that."""

    def check(pids: list[int]) -> bool:
        deadline = time.monotonic() + 20
        while any(_exists(pid) for pid in pids):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    return check


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

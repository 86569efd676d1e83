"""A training in two processes that share the work, as several GPUs would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from chimera_train.output import Output
from chimera_train.router.fit import fit_router
from chimera_train.router.processes import is_main_process, leave_to_main
from chimera_train.router.settings import RouterSettings
from chimera_train.router.store import METRICS


def test_all_but_the_main_process_end(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_to_main()
    monkeypatch.setenv("RANK", "1")
    assert not is_main_process()
    with pytest.raises(SystemExit) as end:
        leave_to_main()
    assert end.value.code == 0


@pytest.mark.integration
def test_two_processes_fit_what_one_does(
    traces: Path, settings: RouterSettings, tmp_path: Path, output: Output
) -> None:
    params, out = tmp_path / "params.yaml", tmp_path / "router"
    params.write_text(yaml.safe_dump({"fit_router": settings.model_dump()}))
    command = f"""
        -m torch.distributed.run --nproc_per_node 2 --rdzv_backend c10d
        --rdzv_endpoint localhost:0 -m chimera_train fit router
        --traces {traces} --out {out} --params {params} --json
    """
    done = subprocess.run(
        [sys.executable, *command.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout)  # one object: the other process is silent
    assert json.loads((out / METRICS).read_text()) == found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["params.yaml", "router"]
    alone = fit_router(traces, tmp_path / "alone", settings, output)
    assert found["epochs"]["trained"] == alone["epochs"]["trained"]
    assert found["map_macro"] == pytest.approx(alone["map_macro"], abs=0.05)

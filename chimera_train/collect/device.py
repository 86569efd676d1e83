"""The name of this machine's CPU; standard library only, since engines' interpreters import it."""

import os
import platform
from pathlib import Path

__all__ = ["cpu_name"]


def cpu_name() -> str:
    """Model and number of logical cores, such as ``AMD EPYC 7763 x16``."""
    cores = f"x{os.cpu_count()}"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return f"{value.strip()} {cores}"
    except OSError:
        pass
    return f"{platform.machine()} {cores}"

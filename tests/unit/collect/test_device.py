"""Clocks: what nvidia-smi prints in the format it is documented to have, and this machine's CPU."""

import os
from pathlib import Path

import pytest

from chimera_train.collect import device
from chimera_train.collect.device import clock_changes, cpu_name, device_name, read_clocks

QUERY = "--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit"
TWO = "NVIDIA H100 80GB HBM3, 550.54.15, 1980, 2619, 700.00\n" * 2


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def install(output: str, status: int = 0) -> None:
        path = tmp_path / "nvidia-smi"
        (tmp_path / "answer").write_text(output)
        path.write_text(
            f'#!/bin/sh\n[ "$1 $2" = "{QUERY} --format=csv,noheader,nounits" ] || exit 9\n'
            f'cat "{tmp_path}/answer"; exit {status}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_gpus_are_read_from_nvidia_smi(smi) -> None:
    smi(TWO)
    clocks = read_clocks()
    gpu = {
        "name": "NVIDIA H100 80GB HBM3",
        "driver": "550.54.15",
        "sm_mhz": 1980.0,
        "memory_mhz": 2619.0,
        "power_limit_w": 700.0,
    }
    assert clocks["gpus"] == [gpu, gpu]
    assert device_name() == "NVIDIA H100 80GB HBM3 x2"
    assert clocks["cpu"]["name"] == cpu_name()


def test_what_a_gpu_does_not_say_is_null(smi) -> None:
    smi("NVIDIA GeForce RTX 4090, 550.54.15, [N/A], 10501, [Not Supported]\n")
    (gpu,) = read_clocks()["gpus"]
    assert (gpu["sm_mhz"], gpu["memory_mhz"], gpu["power_limit_w"]) == (None, 10501.0, None)


@pytest.mark.parametrize(
    ("output", "status"),
    [("", 0), ("No devices were found\n", 0), (TWO, 9), ("Failed to initialize NVML\n", 1)],
)
def test_without_a_gpu_the_device_is_the_cpu(smi, output: str, status: int) -> None:
    smi(output, status)
    assert read_clocks()["gpus"] == []
    assert device_name() == cpu_name()


def test_this_machine_has_a_cpu() -> None:
    cpu = read_clocks()["cpu"]
    assert cpu["name"].endswith(f"x{os.cpu_count()}")
    assert cpu["mhz"] is None or 100 < cpu["mhz"] < 10_000


def test_the_cpu_clock_is_that_of_the_fastest_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(device, "_CPUS", tmp_path)
    assert read_clocks()["cpu"]["mhz"] is None
    (tmp_path / "cpuinfo").write_text("model name : Z80\ncpu MHz : 800.1\n\ncpu MHz : 3500.5\n")
    assert read_clocks()["cpu"]["mhz"] == 3500.5
    assert cpu_name() == f"Z80 x{os.cpu_count()}"
    for core, kilohertz in ((0, 1_200_000), (1, 2_400_000)):
        directory = tmp_path / f"cpu{core}" / "cpufreq"
        directory.mkdir(parents=True)
        (directory / "scaling_cur_freq").write_text(f"{kilohertz}\n")
        (directory / "scaling_governor").write_text("powersave\n")
    cpu = read_clocks()["cpu"]
    assert (cpu["mhz"], cpu["governor"]) == (2400.0, "powersave")


def reading(sm_mhz: float | None, cpu_mhz: float | None = 2000.0, gpus: int = 1):
    gpu = {"name": "x", "driver": "1", "sm_mhz": sm_mhz, "memory_mhz": 9.0, "power_limit_w": None}
    return {"gpus": [gpu] * gpus, "cpu": {"name": "y", "mhz": cpu_mhz, "governor": None}}


def test_a_clock_that_moved_by_more_than_a_few_percent_is_named() -> None:
    before = reading(1980.0)
    assert clock_changes(before, reading(1935.0, cpu_mhz=900.0)) == []
    assert clock_changes(before, reading(1410.0)) == ["sm_mhz of GPU 0 from 1980 to 1410"]
    assert clock_changes(before, reading(None)) == []
    idle = reading(None, gpus=0)
    assert clock_changes(idle, reading(None, 2050.0, gpus=0)) == []
    assert clock_changes(idle, reading(None, 1500.0, gpus=0)) == [
        "mhz of the CPU from 2000 to 1500"
    ]
    assert clock_changes(idle, reading(None, None, gpus=0)) == []

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from chimera_train.pool import supervise

# A process that records itself and a descendant which left its group and ignores SIGTERM.
TREE = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    child = subprocess.Popen(
        [sys.executable, "-c", "import signal, time\\n"
         "signal.signal(signal.SIGTERM, signal.SIG_IGN)\\nprint(1, flush=True)\\ntime.sleep(3600)"],
        stdout=subprocess.PIPE, start_new_session=True)
    child.stdout.readline()
    open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
    print("started", flush=True)
    if sys.argv[2] == "leave":
        sys.exit(5)
    time.sleep(3600)
    """
)


def supervised(*command: str, parent: int | None = None, grace_s: float = 0.3) -> list[str]:
    head = [sys.executable, "-I", supervise.__file__, str(parent or os.getpid()), str(grace_s)]
    return [*head, sys.executable, "-c", *command]


@pytest.mark.parametrize("status", [0, 3, 255])
def test_it_leaves_with_the_status_of_the_engine(status: int) -> None:
    assert subprocess.run(supervised(f"raise SystemExit({status})")).returncode == status


def test_a_signal_is_reported_as_128_plus_its_number() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run(supervised(program)).returncode == 128 + signal.SIGKILL


def test_sigterm_ends_the_whole_tree(
    pids_path: Path, pids: Callable[[], list[int]], all_gone: Callable[[list[int]], bool]
) -> None:
    command = supervised(TREE, str(pids_path), "stay")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        process.wait()
        # Not "eventually": the supervisor has waited for them.
        assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []


def test_what_an_engine_leaves_behind_when_it_ends_is_ended_too(
    pids_path: Path, pids: Callable[[], list[int]]
) -> None:
    command = supervised(TREE, str(pids_path), "leave")
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 5
    assert len(pids()) == 2
    assert [pid for pid in pids() if Path(f"/proc/{pid}").exists()] == []


def test_the_tree_ends_when_the_parent_is_killed(
    pids_path: Path, pids: Callable[[], list[int]], all_gone: Callable[[list[int]], bool]
) -> None:
    parent = textwrap.dedent(
        f"""
        import os, subprocess, sys
        command = {supervised(TREE, str(pids_path), "stay")!r}
        command[3] = str(os.getpid())
        subprocess.Popen(command, start_new_session=True).wait()
        """
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        process.wait()
        assert all_gone(pids())


def test_an_engine_is_not_left_running_when_the_parent_is_gone_before_the_start(
    pids_path: Path, all_gone: Callable[[list[int]], bool]
) -> None:
    command = supervised("import time; time.sleep(3600)", parent=2**22)
    assert subprocess.run(command, timeout=30).returncode == 128 + signal.SIGTERM

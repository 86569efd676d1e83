"""Run one engine so that nothing of it outlives the program that asked for it.

    python supervise.py PARENT_PID GRACE_S COMMAND...

vLLM is a tree of processes, and a program that is killed cannot clean up after itself. This
process can: it starts the engine in a process group of its own, and when it is told to stop
(SIGTERM), its parent is gone, or the engine's first process has ended, it ends the whole tree and
waits until nothing is left of it. Run as a file with ``python -I``, it needs only the standard
library and starts in milliseconds. It leaves with the engine's exit status, or 128 plus the signal
that ended it.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

__all__ = ["main"]

_POLL_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run ``COMMAND`` until it ends or has to; the exit status is the engine's."""
    parent, grace_s, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    stopping = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    # Orphans of the tree become children of this process, which can then see and end them even
    # when they have left the engine's group.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    engine = os.posix_spawnp(command[0], command, os.environ, setpgroup=0)
    tree = _Tree(engine)
    while tree.reap() and tree.status is None and not stopping and os.getppid() == parent:
        time.sleep(_POLL_S)

    tree.terminate()
    deadline = time.monotonic() + grace_s
    while tree.reap():
        if time.monotonic() > deadline:
            tree.kill()
        time.sleep(_POLL_S)
    status = tree.status or 0
    return status if status >= 0 else 128 - status


class _Tree:
    """The processes descended from ``engine``; ``status`` is that one's, once it has ended."""

    def __init__(self, engine: int) -> None:
        self._engine = engine
        self.status: int | None = None

    def reap(self) -> bool:
        """Collect what has ended; False when no process of the tree is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._engine:
                self.status = os.waitstatus_to_exitcode(status)

    def terminate(self) -> None:
        """Ask the engine's group to end."""
        _signal(-self._engine, signal.SIGTERM)

    def kill(self) -> None:
        """End the group and every child of this process: orphans that had left the group too."""
        _signal(-self._engine, signal.SIGKILL)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                # pid (name) state ppid ...; the name may hold anything.
                parent = stat.read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == os.getpid():
                _signal(int(stat.parent.name), signal.SIGKILL)


def _signal(target: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Processes that compare mathematical answers, each with a deadline."""

import json
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import LifoQueue

__all__ = ["VerifyPool"]

_START_S = 60.0  # imports SymPy on a machine that is very busy


class VerifyPool:
    """A few processes that compare answers; one that hangs is killed and replaced.

    Args:
        deadline_s: seconds for one comparison.
        size: how many processes there may be; by default one for each core, at most 4.
    """

    def __init__(self, deadline_s: float = 10.0, size: int | None = None) -> None:
        self._deadline_s = deadline_s
        self._idle: LifoQueue[_Worker | None] = LifoQueue()
        self._size = size or min(4, len(os.sched_getaffinity(0)))
        for _ in range(self._size):
            self._idle.put(None)  # a place, for which no process has been started yet

    def equal(self, pairs: Sequence[tuple[str, str]]) -> bool | None:
        """Whether one of the pairs (gold, answer) is equal; None if that took too long."""
        worker = self._idle.get()
        try:
            worker = worker or _Worker(self._deadline_s)
            found = worker.ask(pairs, self._deadline_s)
        except OSError:  # it died between two questions
            found = None
        if found is None and worker is not None:
            worker.close()
            worker = None
        self._idle.put(worker)
        return found

    def close(self) -> None:
        """End the processes; waits for comparisons in flight."""
        for _ in range(self._size):
            worker = self._idle.get()
            if worker is not None:
                worker.close()
        for _ in range(self._size):
            self._idle.put(None)


class _Worker:
    """One process; not for two threads at once."""

    def __init__(self, deadline_s: float) -> None:
        command = [sys.executable, "-m", "chimera_train.tasks.math_worker"]
        self._process = subprocess.Popen(
            [*command, str(math.ceil(deadline_s))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the collection, which then closes the pool
        )
        # Known to be equal: answers once everything is imported, which is not its deadline's time.
        if self.ask([("1", "1")], _START_S) is None:
            self.close()
            raise OSError("a process for comparing answers did not start")

    def ask(self, pairs: Sequence[tuple[str, str]], deadline_s: float) -> bool | None:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        stdin.write(json.dumps(pairs).encode() + b"\n")
        stdin.flush()
        end = time.monotonic() + deadline_s
        while not select.select([stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            if time.monotonic() > end:
                return None
        line = stdout.readline()
        return bool(json.loads(line)) if line.endswith(b"\n") else None

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

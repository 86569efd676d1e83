"""Mode ``programs``: a program as a script, once for each input."""

import builtins
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

__all__ = ["run_all"]


def run_all(job: Mapping[str, Any], send: Callable[[Any], None]) -> None:
    """Run the program on each input, and send what came of it."""
    for text in job["inputs"]:
        send(_run(job, text))


def _run(job: Mapping[str, Any], text: str) -> dict[str, Any]:
    start = time.monotonic()
    outputs = [os.pipe() for _ in range(2)]
    source = os.memfd_create("stdin")
    with os.fdopen(os.dup(source), "wb") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
    os.lseek(source, 0, os.SEEK_SET)
    child = _fork()
    if child == 0:
        _become(job["code"], (source, outputs[0][1], outputs[1][1]))
    for descriptor in (source, outputs[0][1], outputs[1][1]):
        os.close(descriptor)
    readers = {outputs[0][0]: bytearray(), outputs[1][0]: bytearray()}
    status, code = _follow(child, readers, start + job["wall_s"], job["output_bytes"])
    _kill_everything_else()
    for reader in readers:
        os.close(reader)
    stdout, stderr = (bytes(data).decode("utf-8", "replace") for data in readers.values())
    if status == "error" and "MemoryError" in stderr[-200:]:
        status = "memory"
    return {
        "status": status,
        "exit_code": code,
        "stdout": stdout,
        "stderr": stderr,
        "wall_s": time.monotonic() - start,
    }


def _fork() -> int:
    """Fork; what an earlier program left may still be dying and hold the last free process."""
    for attempt in range(20):
        try:
            return os.fork()
        except BlockingIOError:
            if attempt == 19:
                raise
            _kill_everything_else()
            time.sleep(0.05)
    raise AssertionError


def _become(code: str, streams: tuple[int, int, int]) -> NoReturn:
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 1 << 12)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__", "__builtins__": builtins})  # noqa: S102
    sys.exit(0)


def _follow(
    child: int, readers: dict[int, bytearray], deadline: float, most: int
) -> tuple[str, int | None]:
    """Read what a process prints until it ends, in time or not."""
    watch = os.pidfd_open(child)
    waiting = [*readers, watch]
    verdict = ""
    while watch in waiting:
        left = deadline - time.monotonic()
        ready = select.select(waiting, [], [], max(0.0, left))[0]
        if not ready:
            verdict = "timeout"
        for descriptor in (each for each in ready if each != watch):
            data = os.read(descriptor, 1 << 16)
            readers[descriptor] += data
            if not data:
                waiting.remove(descriptor)
            if len(readers[descriptor]) > most:
                verdict = "output"
                del readers[descriptor][most:]
        if verdict:
            os.kill(child, signal.SIGKILL)
        if verdict or watch in ready:
            waiting.remove(watch)
    os.close(watch)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for descriptor in (each for each in waiting if not verdict and each in readers):
        _drain(descriptor, readers[descriptor], most)
    if not verdict and code in (-signal.SIGXCPU, -signal.SIGKILL):
        verdict = "timeout" if code == -signal.SIGXCPU else "killed"
    return verdict or ("ok" if code == 0 else "error" if code > 0 else "killed"), code


def _drain(descriptor: int, data: bytearray, most: int) -> None:
    """What is already in a pipe; its other end may be held by a grandchild for ever."""
    os.set_blocking(descriptor, False)
    try:
        while len(data) < most and (more := os.read(descriptor, 1 << 16)):
            data += more
    except BlockingIOError:
        return
    finally:
        del data[most:]


def _kill_everything_else() -> None:
    """End every process that the programs have left: nobody else runs under this user here."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return

"""Running Python code that a model wrote, away from everything it could harm.

Each sandbox is a fresh interpreter (the standard library, no installed packages of ours) with an
empty temporary directory, a scrubbed environment, limits on CPU time, memory,
processes, file size and open files, a deadline, and a cap on what it prints. When it ends, in
whatever way, every process that it started is killed and its directory is gone. How far it is kept
apart depends on what the machine offers (``isolate``), and each result says it. Where it offers
nothing, nothing is run.

Not covered: holes in the kernel (no system call is filtered), side channels, and the sum of memory
over a sandbox's processes: a process may have ``memory_mib``, and there may be ``processes`` of
them; files without a name (``memfd``) come on top, ``open_files`` of ``file_mib`` a process.
Processes are counted per user before Linux 5.14.
"""

import json
import socket
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as package_files
from typing import Any, Literal, get_args

from chimera_train.tasks.isolate import Isolation, drawn_user, isolated, isolation

__all__ = [
    "Channel",
    "Limits",
    "Run",
    "run_programs",
    "run_python",
    "sandbox",
    "started",
]

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

_START_S = 30.0  # of an interpreter on a machine that is very busy
_GRACE_S = 3.0  # for a sandbox to notice that a program's time is over
# The modules that a sandbox runs, as text over its socket: it sees none of our files.
_MODULES = ["values", "serve", "check", "programs", "start"]
_BOOT = """
import json, socket, sys, types
control = socket.socket(fileno=int(sys.argv[1]))
size = int.from_bytes(control.recv(8, socket.MSG_WAITALL))
for name, source in json.loads(control.recv(size, socket.MSG_WAITALL)):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
module.start(control)
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run of a program may use.

    Attributes:
        wall_s, cpu_s: seconds until it is killed, by the clock and of CPU time.
        memory_mib: address space of each process.
        processes: processes and threads at one time, the sandbox's own two included.
        file_mib: size of a file; also, times four, of all files.
        open_files: open at one time, by each process.
        output_kib: characters of stdout and of stderr; a program that prints more is killed.
    """

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_mib: int = 512
    processes: int = 16
    file_mib: int = 16
    open_files: int = 64
    output_kib: int = 1024

    def resources(self, runs: int = 1) -> dict[str, int]:
        """As names of the module ``resource``, for a process that does the work of ``runs``."""
        return {
            "RLIMIT_CPU": self.cpu_s * runs,
            "RLIMIT_AS": self.memory_mib << 20,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_mib << 20,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a program.

    Attributes:
        status: ``ok`` (exit code 0), ``error`` (another one), ``timeout``, ``memory``, ``output``
            (printed too much) or ``killed`` (by a signal).
        exit_code: negative for a signal; None if the sandbox ended before it was known.
        stdout, stderr: up to the limit; bytes that are not UTF-8 are replaced.
        isolation, network: what it was kept from.
    """

    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    isolation: Isolation
    network: Literal["none", "shared"]


def run_python(
    code: str,
    *,
    stdin: str = "",
    limits: Limits | None = None,
    files: Mapping[str, str] | None = None,
) -> Run:
    """Run ``code`` as a script in a sandbox of its own; under ``Limits()`` unless told otherwise.

    ``files`` are texts by name, which are in the directory in which it starts.

    Raises:
        ConfigError: this machine offers no way to isolate it.
    """
    with closing(run_programs(code, [stdin], limits or Limits(), files)) as runs:
        return next(runs)


def run_programs(
    code: str, inputs: Sequence[str], limits: Limits, files: Mapping[str, str] | None = None
) -> Generator[Run, None, None]:
    """Run ``code`` as a script once for each input, one after the other, in one sandbox.

    Every run has a process of its own, forked before any of the code ran; files that one leaves
    are seen by the next. Stop iterating, and close the iterator, to leave the others out.

    Raises:
        ConfigError: this machine offers no way to isolate it.
    """
    job = {
        "mode": "programs",
        "code": code,
        "inputs": list(inputs),
        "wall_s": limits.wall_s,
        "output_bytes": limits.output_kib << 10,
    }
    with sandbox(job, limits, files=files) as channel:
        there = started(channel)
        for _ in inputs:
            begin = time.monotonic()
            line = channel.read(limits.wall_s + _GRACE_S) if there else None
            if line is None:
                wall_s = time.monotonic() - begin
                ended: Status = "killed" if there and wall_s < limits.wall_s else "timeout"
                yield _run_of({"status": ended, "wall_s": wall_s})
                return
            yield _run_of(line)


def _run_of(line: Mapping[str, Any]) -> Run:
    """What a sandbox says of a run; it may say anything, once a program took it over."""
    how = isolation()
    code, said = line.get("exit_code"), line.get("status")
    status: Status = next((each for each in get_args(Status) if each == said), "killed")
    try:
        wall_s = float(line["wall_s"])
    except (LookupError, TypeError, ValueError, OverflowError):
        wall_s = 0.0
    return Run(
        status=status,
        exit_code=code if isinstance(code, int) else None,
        stdout=str(line.get("stdout", "")),
        stderr=str(line.get("stderr", "")),
        wall_s=wall_s,
        isolation=how,
        network="shared" if how == "user" else "none",
    )


class Channel:
    """The socket over which a sandbox says what came of its job, one JSON object a line."""

    _LONGEST = 16 << 20

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def send(self, data: bytes) -> None:
        """Send all of it; nothing if the other side is gone."""
        with suppress(OSError):
            self._connection.settimeout(_START_S)
            self._connection.sendall(data)

    def read(self, timeout_s: float) -> dict[str, Any] | None:
        """The next object; None if there is none in time, or what comes is none."""
        deadline = time.monotonic() + timeout_s
        searched = 0
        while (end := self._data.find(b"\n", searched)) < 0:
            searched = len(self._data)
            left = deadline - time.monotonic()
            if left <= 0 or searched > self._LONGEST:
                return None
            self._connection.settimeout(left)
            try:
                data = self._connection.recv(1 << 18)
            except OSError:
                return None
            if not data:
                return None
            self._data += data
        line = bytes(self._data[:end])
        del self._data[: end + 1]
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@contextmanager
def sandbox(
    job: Mapping[str, Any],
    limits: Limits,
    *,
    runs: int = 1,
    files: Mapping[str, str] | None = None,
    peer: socket.socket | None = None,
) -> Iterator[Channel]:
    """A running sandbox that does ``job`` (see ``guest``); killed and removed at the end.

    Its processes may use ``runs`` times the CPU seconds of the limits. ``peer`` is a socket that
    the job is to use.

    Raises:
        ConfigError: this machine offers no way to isolate it.
    """
    user = drawn_user()
    ours, theirs = socket.socketpair()
    passed = [theirs.fileno(), *([peer.fileno()] if peer is not None else [])]
    with ours, theirs, isolated(_BOOT, [str(passed[0])], passed, user, limits.file_mib << 22):
        theirs.close()
        channel = Channel(ours)
        modules = _modules()
        channel.send(len(modules).to_bytes(8) + modules)
        whole = {
            "files": dict(files or {}),
            "peer": peer.fileno() if peer is not None else None,
            **job,
            "limits": limits.resources(runs),
            "user": user,
            "no_new_privileges": isolation() != "bubblewrap",
        }
        channel.send(json.dumps(whole).encode() + b"\n")
        yield channel


def started(channel: Channel) -> bool:
    """Wait until a sandbox has begun its job; false if it does not in a long time."""
    return channel.read(_START_S) is not None


@cache
def _modules() -> bytes:
    """Names and sources of what a sandbox runs, in the order in which they import each other."""
    package = "chimera_train.tasks.guest"
    parts = package.split(".")
    sources = [(".".join(parts[: number + 1]), "") for number in range(len(parts))]
    for name in _MODULES:
        source = package_files(package).joinpath(f"{name}.py").read_text(encoding="utf-8")
        sources.append((f"{package}.{name}", source))
    return json.dumps(sources).encode()

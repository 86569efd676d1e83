"""Running Python code that a model wrote, away from everything it could harm.

Each sandbox is a fresh interpreter (the standard library, no installed packages of ours) with an
empty temporary directory, an environment of four harmless variables, limits on CPU time, memory,
processes, file size and open files, a deadline, and a cap on what it prints. When it ends, in
whatever way, every process that it started is killed and its directory is gone. How far it is kept
apart depends on what the machine offers; :func:`isolation` says which it is:

- ``bubblewrap``: namespaces of its own. It sees the interpreter and ``/usr`` (read-only), none of
  the user's files, no other process and no network; its files are in memory.
- ``namespaces`` (``unshare``): no other process and no network, but files as the user sees them.
- ``user`` (only as root): another user, whose id is drawn for each sandbox. The network and all
  files that anyone may read or write are within reach.

With none of the three nothing is run. As root the code becomes a user without rights whose id
nobody else has, so that the limit on processes binds, which it does not for root.

Not covered: holes in the kernel (no system call is filtered), side channels, and the sum of memory
over a sandbox's processes: a process may have ``memory_mib``, and there may be ``processes`` of
them. Processes are counted per user before Linux 5.14.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

from chimera_train.errors import ConfigError

__all__ = [
    "Channel",
    "Isolation",
    "Limits",
    "Run",
    "isolation",
    "run_programs",
    "run_python",
    "sandbox",
    "started",
]

Isolation = Literal["bubblewrap", "namespaces", "user"]
Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]

_START_S = 30.0  # of an interpreter on a machine that is very busy
_GRACE_S = 3.0  # for a sandbox to notice that a program's time is over
_FLAGS = ["-S", "-s", "-P", "-B"]  # no installed packages, nothing from the current directory
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
}


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
    code: str, *, stdin: str = "", limits: Limits | None = None, files: Mapping[str, str] | None = None
) -> Run:
    """Run ``code`` as a script in a sandbox of its own.

    Args:
        files: name to text, put into the directory in which the program starts.

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
    how = isolation()
    job = {
        "mode": "programs",
        "code": code,
        "inputs": list(inputs),
        "wall_s": limits.wall_s,
        "output_bytes": limits.output_kib << 10,
    }
    network: Literal["none", "shared"] = "shared" if how == "user" else "none"
    with sandbox(job, limits, files=files) as channel:
        if not started(channel):
            return
        for _ in inputs:
            begin = time.monotonic()
            line = channel.read(limits.wall_s + _GRACE_S)
            if line is None:
                wall_s = time.monotonic() - begin
                status: Status = "timeout" if wall_s > limits.wall_s else "killed"
                yield Run(status, None, "", "", wall_s, how, network)
                return
            yield Run(**line, isolation=how, network=network)


class Channel:
    """The socket over which a sandbox says what came of its job, one JSON object a line."""

    _LONGEST = 16 << 20

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._data = bytearray()

    def send(self, value: Any) -> None:
        """Send a line; nothing if the other side is gone."""
        with suppress(OSError):
            self._connection.settimeout(_START_S)
            self._connection.sendall(json.dumps(value).encode() + b"\n")

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
    """A running sandbox that does ``job`` (see ``guest.py``); killed and removed at the end.

    Args:
        runs: how many times the CPU seconds of the limits its processes may use.
        peer: a socket that the job is to use.

    Raises:
        ConfigError: this machine offers no way to isolate it.
    """
    how = isolation()
    user = random.SystemRandom().randrange(1 << 30, 1 << 31) if os.geteuid() == 0 else None
    with ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        passed = [theirs.fileno(), *([peer.fileno()] if peer is not None else [])]
        process = stack.enter_context(_process(how, user, passed, limits))
        theirs.close()
        channel = Channel(ours)
        channel.send(
            {
                "files": dict(files or {}),
                "peer": peer.fileno() if peer is not None else None,
                **job,
                "limits": limits.resources(runs),
                "user": user,
                "no_new_privileges": how != "bubblewrap",
            }
        )
        try:
            yield channel
        finally:
            _end(process, user if how == "user" else None)


def started(channel: Channel) -> bool:
    """Wait until a sandbox has begun its job; false if it does not in a long time."""
    return channel.read(_START_S) is not None


@cache
def isolation() -> Isolation:
    """The strongest way of keeping code apart that works on this machine.

    Raises:
        ConfigError: none works.
    """
    python = _python()
    ways: list[Isolation] = ["bubblewrap", "namespaces"]
    for how in ways:
        prefix = _prefix(how, Limits())
        if prefix and shutil.which(prefix[0]):
            command = [*prefix, python, *_FLAGS, "-c", "pass"]
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    command, env=_ENVIRONMENT, cwd="/", timeout=60, check=False,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                if done.returncode == 0:
                    return how
    if os.geteuid() == 0:
        return "user"
    raise ConfigError(
        "Code written by models cannot be run safely here: neither bubblewrap nor 'unshare' works"
        " for this user; install bubblewrap (bwrap) and allow user namespaces."
    )


@contextmanager
def _process(
    how: Isolation, user: int | None, passed: Sequence[int], limits: Limits
) -> Iterator["subprocess.Popen[bytes]"]:
    source = package_files("chimera_train.tasks").joinpath("guest.py").read_text(encoding="utf-8")
    command = [*_prefix(how, limits), _python(), *_FLAGS, "-c", source, str(passed[0])]
    with ExitStack() as stack:
        directory = "/"
        if how != "bubblewrap":
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="chimera-sandbox-"))
            if user is not None:
                os.chown(directory, user, user)
        yield subprocess.Popen(
            command,
            env={**_ENVIRONMENT, "HOME": _ENVIRONMENT["HOME"] if directory == "/" else directory},
            cwd=directory,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _python() -> str:
    """The interpreter behind a virtual environment: what a sandbox sees holds no packages."""
    return os.path.realpath(sys.executable)


def _prefix(how: Isolation, limits: Limits) -> list[str]:
    """The command that a sandbox's interpreter is started by."""
    root = os.geteuid() == 0
    if how == "user":
        return []
    if how == "namespaces":
        user = [] if root else ["--user", "--map-current-user"]
        return ["unshare", *user, "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    # Root gives its rights up itself, for a user outside of any namespace: only there are a user's
    # processes counted.
    command += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if root else ["--unshare-user"]
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            command += ["--ro-bind", name, name]
    home = Path(sys.base_prefix)
    if not home.is_relative_to("/usr"):
        # Its user must get there even where the directories above are private outside.
        for parent in reversed(home.parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", str(home), str(home)]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc"]
    command += ["--dev", "/dev", "--remount-ro", "/dev"]
    command += ["--size", str(limits.file_mib << 22), "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108
    return [*command, "--chdir", "/tmp", "--remount-ro", "/"]  # noqa: S108


def _end(process: "subprocess.Popen[bytes]", user: int | None) -> None:
    """Kill a sandbox with all that it started, and return once it is gone."""
    deadline = time.monotonic() + 5.0
    # Its first process dies before the one that started it, who then takes note and ends: killed
    # the other way round, a dead process would be left to whoever adopts it.
    for child in _children(process.pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    try:
        process.wait(2.0 if user is None else 0.0)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while time.monotonic() < deadline:
        left = _living(user=user) if user is not None else _living(group=process.pid)
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _living(*, user: int | None = None, group: int | None = None) -> list[int]:
    """Processes of a user or of a process group; dead ones that nobody waited for do not count."""
    if group is not None:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return []
    found = []
    for path in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        with suppress(OSError):
            # Behind the command's name, which may hold anything: state, parent, process group.
            state, _, of_group, *_ = (path / "stat").read_text().rpartition(")")[2].split()
            mine = int(of_group) == group if user is None else path.stat().st_uid == user
            if mine and state != "Z":
                found.append(int(path.name))
    return found

"""The ways to keep a process apart that this machine offers, and how it is ended in each.

- ``bubblewrap``: namespaces of its own. It sees the interpreter and ``/usr`` (read-only), none of
  the user's files, no other process and no network; its files are in memory.
- ``namespaces`` (``unshare``): no other process and no network, but files as the user sees them.
- ``user`` (only as root): another user, whose id is drawn for each sandbox. The network and all
  files that anyone may read or write are within reach; System V memory that it leaves stays.

As root the code becomes a user without rights whose id nobody else has, so that the limit on
processes binds, which it does not for root. What it left in directories that all users share is
found by that id.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

from chimera_train.errors import ConfigError

__all__ = ["Isolation", "drawn_user", "isolated", "isolation"]

Isolation = Literal["bubblewrap", "namespaces", "user"]

_FLAGS = ["-S", "-s", "-P", "-B"]  # no installed packages, nothing from the current directory
_AT_ONCE = 1000  # arguments of a command
_HOME = "/tmp"  # noqa: S108 - the sandbox's own
_SHARED = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where a program may leave files
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


def drawn_user() -> int | None:
    """A user id that nobody has, for one sandbox; None if this process cannot change its own."""
    return random.SystemRandom().randrange(1 << 30, 1 << 31) if os.geteuid() == 0 else None


@cache
def isolation() -> Isolation:
    """The strongest way of keeping code apart that works on this machine.

    Raises:
        ConfigError: none works.
    """
    python, user = _python(), drawn_user()
    ways: list[Isolation] = ["bubblewrap", "namespaces"]
    if user is not None:
        ways.append("user")
    # As its user: to whom the library in somebody's home is closed, every program would be wrong.
    test = "import random" if user is None else f"import os; os.setuid({user}); import random"
    for how in ways:
        prefix = _prefix(how, 1 << 20)
        if not prefix or shutil.which(prefix[0]):
            command = [*prefix, python, *_FLAGS, "-c", test]
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    command, env=_ENVIRONMENT, cwd="/", timeout=60, check=False,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                if done.returncode == 0:
                    return how
    raise ConfigError(
        "Code written by models cannot be run safely here: neither bubblewrap nor 'unshare' works"
        f" for this user with {python}; install bubblewrap (bwrap) and allow user namespaces."
    )


@contextmanager
def isolated(
    code: str, arguments: Sequence[str], passed: Sequence[int], user: int | None, files_bytes: int
) -> Iterator[None]:
    """A process apart that runs ``python -c code arguments``, in an empty directory of its own.

    At the end it is killed with all that it started, and the directory is removed. It keeps the
    file descriptors ``passed`` and is to become ``user`` by itself; ``files_bytes`` bounds its
    files together where they are in memory.

    Raises:
        ConfigError: this machine offers no way to isolate it.
    """
    how = isolation()
    with ExitStack() as stack:
        directory, home = "/", _HOME
        if how != "bubblewrap":
            home = directory = tempfile.mkdtemp(prefix="chimera-sandbox-")
            stack.callback(_remove, directory, user)
            if user is not None:
                os.chown(directory, user, user)
        process = subprocess.Popen(
            [*_prefix(how, files_bytes), _python(), *_FLAGS, "-c", code, *arguments],
            env={**_ENVIRONMENT, "HOME": home},
            cwd=directory,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            _end(process, user if how == "user" else None)


def _python() -> str:
    """The interpreter behind a virtual environment: what a sandbox sees holds no packages."""
    return os.path.realpath(sys.executable)


def _prefix(how: Isolation, files_bytes: int) -> list[str]:
    """The command that a sandbox's interpreter is started by."""
    root = os.geteuid() == 0
    if how == "user":
        return []
    if how == "namespaces":
        command = ["unshare", "--net", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return command if root else [*command, "--user", "--map-current-user"]
    command = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    command += ["--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    # Root gives its rights up itself, for a user outside of any namespace: only there are a user's
    # processes counted.
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    command += rights if root else ["--unshare-user"]
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            command += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            command += ["--ro-bind", name, name]
    command += ["--size", str(files_bytes), "--perms", "1777", "--tmpfs", _HOME]
    home = Path(sys.base_prefix).resolve()
    if not home.is_relative_to("/usr"):
        # Its user must get there even where the directories above are private outside.
        for parent in reversed(home.parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]
        command += ["--ro-bind", str(home), str(home)]
    command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--proc", "/proc"]
    command += ["--dev", "/dev", "--remount-ro", "/dev"]
    return [*command, "--chdir", _HOME, "--remount-ro", "/"]


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


def _remove(directory: str, user: int | None) -> None:
    """Remove a directory, and what ``user`` has left elsewhere."""
    left = [directory]
    if user is None:
        # A program may close its directories to its own user, but not to root.
        _run("chmod", "-R", "u+rwX", "--", directory)
    for place in _SHARED if user is not None else ():
        with suppress(OSError), os.scandir(place) as entries:
            left += [
                each.path for each in entries if each.stat(follow_symlinks=False).st_uid == user
            ]
    # Python's own recursion would end before directories do that a program has made on purpose.
    for start in range(0, len(left), _AT_ONCE):
        _run("rm", "-rf", "--", *left[start : start + _AT_ONCE])


def _run(*command: str) -> None:
    subprocess.run(
        command, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _children(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in children.split()]


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

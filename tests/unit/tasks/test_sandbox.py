"""Hostile programs: none may hang, reach what is outside, or leave a process or a file."""

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chimera_train.errors import ConfigError
from chimera_train.tasks import isolate, sandbox
from chimera_train.tasks.sandbox import Limits, run_programs, run_python

LIMITS = Limits(wall_s=10.0, cpu_s=1, memory_mib=256, output_kib=64)
SHORT = replace(LIMITS, wall_s=0.5)
SECRET = "not for programs"

# What a program does, and how its run may end.
HOSTILE = {
    "endless loop": ("while True: pass", {"timeout"}),
    "sleep": ("import time\ntime.sleep(60)", {"timeout"}),
    "fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"timeout", "killed"},
    ),
    "threads": (
        "import threading, time\n"
        "for _ in range(1000): threading.Thread(target=time.sleep, args=(60,)).start()",
        {"error", "timeout"},
    ),
    "memory bomb": ("text = 'x' * 1000\nwhile True: text += text", {"memory"}),
    "endless output": ("while True: print('x' * 1000)", {"output"}),
    "endless error output": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", {"output"}),
    "huge line": ("import sys\nsys.stdout.write('x' * 10_000_000)", {"output"}),
    "deep recursion": ("def f(n): return f(n + 1) + 1\nf(0)", {"error"}),
    "stack overflow": (
        "import sys\nsys.setrecursionlimit(10 ** 9)\nf = lambda x: [f([x])]\nf(0)",
        {"error", "killed", "timeout", "memory"},
    ),
    "crash": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", {"killed"}),
    "deaf to signals": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        {"timeout", "killed"},
    ),
    "killing the parent": (
        "import os\nos.kill(os.getppid(), 9)\nwhile True: pass",
        {"killed", "timeout"},
    ),
    "killing everyone": ("import os\nos.kill(-1, 9)\nwhile True: pass", {"killed", "error"}),
    "huge file": ("open('f', 'wb').truncate(1 << 40)", {"error", "killed"}),
    "many files": (
        "for n in range(20):\n    open(f'f{n}', 'wb').write(bytes(15 << 20))",
        {"error", "timeout"},
    ),
    "many open files": ("held = [open('/dev/null') for _ in range(1000)]", {"error"}),
    "other user": ("import os\nos.setuid(0)", {"error"}),
    "stopping everyone": ("import os\nos.kill(-1, 19)\nwhile True: pass", {"timeout", "error"}),
    "an end that takes for ever": (
        "import atexit\n@atexit.register\ndef wait():\n    while True: pass",
        {"timeout"},
    ),
    "no descriptors": ("import os\nos.closerange(0, 99)\nwhile True: pass", {"timeout"}),
}

# These end well; what they print tells whether they got anywhere.
SPIES = {
    "reading outside": "print(open({secret!r}).read())",
    "writing outside": "open({directory!r} + '/written', 'w').write('x')",
    "writing to the system": "open('/usr/lib/written', 'w').write('x')",
    "writing to the root": "open('/written', 'w').write('x')",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)\nprint({text!r})",
    "environment": "import os\nprint(os.environ['CHIMERA_SECRET'])",
    "processes outside": "import os\nos.kill({pid}, 0)\nprint({text!r})",
    "our packages": "import pydantic",
}


def left_behind() -> set[str]:
    """Temporary directories and processes of sandboxes, but for dead ones nobody waited for."""
    found = {str(path) for path in Path("/tmp").glob("chimera-sandbox-*")}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z" and b"module.start(control)" in command:
            found.add(path.name)
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert not left_behind()


@pytest.fixture
def listening():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_ends_in_time(name):
    code, allowed = HOSTILE[name]
    start = time.monotonic()
    run = run_python(code, limits=SHORT if "timeout" in allowed else LIMITS)
    assert run.status in allowed
    assert time.monotonic() - start < 10  # half a second where nothing else is done
    assert len(run.stdout) <= 64 << 10


@pytest.mark.parametrize("name", SPIES)
def test_a_program_sees_nothing_of_what_is_outside(name, tmp_path, listening, monkeypatch):
    if isolate.isolation() != "bubblewrap":
        pytest.skip("bubblewrap does not work here")
    (tmp_path / "secret").write_text(SECRET)
    monkeypatch.setenv("CHIMERA_SECRET", SECRET)
    code = SPIES[name].format(
        secret=str(tmp_path / "secret"),
        directory=str(tmp_path),
        port=listening,
        pid=os.getpid(),
        text=SECRET,
    )
    run = run_python(code, limits=LIMITS)
    assert (run.status, run.stdout) == ("error", "")
    assert run.network == "none"
    assert not (tmp_path / "written").exists()


def test_a_child_that_left_its_group_and_session_is_killed_too():
    code = (
        "import os, sys, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        time.sleep(60)\n"
        "print('left them')"
    )
    run = run_python(code, limits=LIMITS)
    assert (run.status, run.stdout) == ("ok", "left them\n")


def test_a_program_reads_its_input_and_files():
    run = run_python(
        "import helper, sys\nprint(helper.VALUE + int(input()), sys.stdin.read())\nexit(3)",
        stdin="20\nrést",
        files={"helper.py": "VALUE = 1"},
        limits=LIMITS,
    )
    assert (run.status, run.exit_code, run.stdout) == ("error", 3, "21 rést\n")


def test_runs_share_nothing_in_memory_and_time_out_alone():
    code = (
        "import sys\n"
        "if input() == 'wait':\n"
        "    while True: pass\n"
        "print(hasattr(sys, 'seen'))\n"
        "sys.seen = 1"
    )
    runs = list(run_programs(code, ["go", "wait", "go"], replace(LIMITS, wall_s=1)))
    assert [run.status for run in runs] == ["ok", "timeout", "ok"]
    assert runs[2].stdout == "False\n"


def as_without_bubblewrap(way, monkeypatch):
    if os.geteuid() != 0 or (way == "namespaces" and not _unshare_works()):
        pytest.skip(f"isolation by {way} cannot be had here")
    for module in (isolate, sandbox):
        monkeypatch.setattr(module, "isolation", lambda: way)


@pytest.mark.parametrize("way", ["namespaces", "user"])
def test_what_a_program_leaves_anywhere_is_removed(way, monkeypatch, tmp_path):
    as_without_bubblewrap(way, monkeypatch)
    (tmp_path / "kept").write_text("x")
    code = (
        "import os\n"
        "for place in ('/tmp', '/var/tmp', '/dev/shm'):\n"
        "    try:\n"
        "        os.makedirs(f'{place}/chimera-sandbox-left/closed')\n"
        "        open(f'{place}/chimera-sandbox-file', 'w').close()\n"
        f"        os.symlink({str(tmp_path)!r}, f'{{place}}/chimera-sandbox-link')\n"
        "        os.chmod(f'{place}/chimera-sandbox-left/closed', 0)\n"
        "    except OSError: pass\n"
        "for _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')\n"
        "print('deep')"
    )
    assert run_python(code, limits=LIMITS).stdout == "deep\n"
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        assert not list(Path(place).glob("chimera-sandbox-*"))
    assert (tmp_path / "kept").read_text() == "x"


def test_an_interpreter_that_programs_may_not_read_is_refused(monkeypatch, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root's programs become another user")
    isolate.isolation.cache_clear()
    monkeypatch.setattr(isolate.shutil, "which", lambda name: None)
    (tmp_path / "python").symlink_to("/bin/false")
    monkeypatch.setattr(isolate, "_python", lambda: str(tmp_path / "python"))
    try:
        with pytest.raises(ConfigError, match=r"for this user with .*python; install bubblewrap"):
            isolate.isolation()
    finally:
        isolate.isolation.cache_clear()


@pytest.mark.parametrize("way", ["namespaces", "user"])
def test_without_bubblewrap_a_run_says_what_it_is_kept_from(way, monkeypatch):
    as_without_bubblewrap(way, monkeypatch)
    run = run_python("import os\nprint(os.getuid() > 1 << 29, os.listdir())", limits=LIMITS)
    assert (run.status, run.stdout) == ("ok", "True []\n")
    assert (run.isolation, run.network) == (way, "none" if way == "namespaces" else "shared")
    for name in ("fork bomb", "killing the parent", "killing everyone", "memory bomb"):
        code, allowed = HOSTILE[name]
        limits = SHORT if "timeout" in allowed else LIMITS
        assert run_python(code, limits=limits).status in allowed, name
    outside = f"import os\nos.kill({os.getpid()}, 9)"
    assert run_python(outside, limits=LIMITS).status == "error"
    escaped = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)"
    assert run_python(escaped, limits=LIMITS).status == "ok"


def _unshare_works():
    command = ["unshare", "--net", "--pid", "--fork", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, check=False).returncode == 0


def test_where_nothing_isolates_nothing_is_run(monkeypatch):
    isolate.isolation.cache_clear()
    monkeypatch.setattr(isolate.shutil, "which", lambda name: None)
    monkeypatch.setattr(isolate.os, "geteuid", lambda: 1000)
    try:
        with pytest.raises(ConfigError, match="install bubblewrap"):
            run_python("print(1)")
    finally:
        isolate.isolation.cache_clear()

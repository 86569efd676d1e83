"""What runs inside a sandbox: started as ``python -c <this file> FD``, standard library only.

The first line that comes over the socket FD is a JSON object: the limits to set, the user to
become, and what to do (``mode``):

- ``programs``: run ``code`` as a script once for each of ``inputs``, in a forked process of its
  own, and send what each printed. This process itself never runs a line of the code.
- ``serve``: run ``code`` as a module, then answer what is asked about its names over the socket
  ``peer``: calls, attributes, items.
- ``check``: run trusted checks against a module that another sandbox serves over ``peer``. Values
  come back as plain builtins, so that no object of the module can pretend to equal another, and
  the module sees its arguments only: neither the checks nor what they expect.
"""

import ast
import builtins
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, NoReturn

_LONGEST_LINE = 16 << 20
_ERROR_CHARACTERS = 600


# ----- values that cross a socket -----------------------------------------------------------


def encode(value: Any, keep: dict[int, Any] | None = None) -> Any:
    """A value as JSON: builtins exactly, subclasses of them as their base.

    Anything else stays where it is: it is put into ``keep`` and goes out as a number.

    Raises:
        TypeError: it is no builtin and there is no ``keep``.
    """
    if isinstance(value, Remote):
        return {"mine": value._reference}
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return {"int": hex(int.__index__(value))}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        return {"complex": [encode(value.real), encode(value.imag)]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, keep) for item in kind.__iter__(value)]}
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in pairs]}
    if isinstance(value, type) and value is getattr(builtins, value.__name__, None):
        return {"type": value.__name__}
    if keep is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot be sent")
    keep[len(keep)] = value
    return {"yours": len(keep) - 1}


def decode(value: Any, peer: "Peer | None" = None, keep: Mapping[int, Any] | None = None) -> Any:
    """What ``encode`` made, with the other side's objects as ``Remote`` and ours as themselves."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(*(decode(part) for part in content))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {decode(key, peer, keep): decode(item, peer, keep) for key, item in content}
    if kind == "type" and isinstance(builtin := getattr(builtins, content, None), type):
        return builtin
    if kind == "mine" and keep is not None:
        return keep[content]
    if kind == "yours" and peer is not None:
        return Remote(peer, content)
    makers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return makers[kind](decode(item, peer, keep) for item in content)


class Peer:
    """Asks the sandbox that serves a module."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def ask(self, op: str, *arguments: Any) -> Any:
        """The answer to one request; an exception of the other side is raised here."""
        self._file.write(json.dumps([op, [encode(each) for each in arguments]]).encode() + b"\n")
        self._file.flush()
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise ConnectionError("the program ended or answered too much")
        answer = json.loads(line)
        if "error" in answer:
            kind = getattr(builtins, str(answer["error"]), RuntimeError)
            known = isinstance(kind, type) and issubclass(kind, Exception)
            raise (kind if known else RuntimeError)(str(answer["message"]))
        return decode(answer["value"], self)


class Remote:
    """An object of the served module. It equals nothing but itself."""

    def __init__(self, peer: Peer, reference: int) -> None:
        self.__dict__.update(_peer=peer, _reference=reference)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._peer.ask("call", self, list(arguments), named)

    def __getattr__(self, name: str) -> Any:
        return self._peer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask("set", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._peer.ask("item", self, key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._peer.ask("iterate", self))

    def __len__(self) -> int:
        return int(self._peer.ask("length", self))

    def __bool__(self) -> bool:
        return True


# ----- mode serve ----------------------------------------------------------------------------


def _serve(code: str, connection: socket.socket) -> None:
    file = connection.makefile("rwb")
    keep: dict[int, Any] = {}
    module: dict[str, Any] = {"__name__": "solution", "__builtins__": builtins}
    failure: BaseException | None = None
    try:
        exec(compile(code, "solution.py", "exec"), module)  # noqa: S102 - that is the purpose
    except BaseException as error:  # a program that exits while it is loaded has no functions
        failure = error
    while line := file.readline():
        try:
            if failure is not None:
                raise failure
            op, arguments = json.loads(line)
            value = _answer(op, [decode(each, None, keep) for each in arguments], module)
            answer = {"value": encode(value, keep)}
        except BaseException as error:
            name = type(error).__name__
            answer = {"error": name, "message": f"{name}: {error}"[:_ERROR_CHARACTERS]}
        file.write(json.dumps(answer).encode() + b"\n")
        file.flush()


def _answer(op: str, arguments: list[Any], module: dict[str, Any]) -> Any:
    if op == "names":
        return [name for name in module if not name.startswith("__")]
    if op == "global":
        return module[arguments[0]]
    subject, *rest = arguments
    if op == "call":
        return subject(*rest[0], **rest[1])
    if op == "get":
        return getattr(subject, rest[0])
    if op == "set":
        return setattr(subject, rest[0], rest[1])
    if op == "item":
        return subject[rest[0]]
    if op == "iterate":
        return list(subject)
    return len(subject)


# ----- mode check ----------------------------------------------------------------------------


def _check(job: Mapping[str, Any], connection: socket.socket) -> dict[str, Any]:
    """Passed checks, and what was wrong with the first that failed."""
    peer = Peer(connection)
    passed = 0
    shown = ""
    try:
        names = set(peer.ask("names"))
        if "cases" in job:
            function = _callable_of(job, names, peer)
            for case in job["cases"]:
                shown = f"{job['function']}{tuple(case['alternatives'][0])!r}"
                _call(function, case)
                passed += 1
        else:
            space = _space(job, names, peer)
            for shown in job["checks"]:
                exec(compile(shown, "checks.py", "exec"), space)  # noqa: S102 - trusted
                passed += 1
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        return {"passed": passed, "failed": shown, "reason": reason[:_ERROR_CHARACTERS]}
    return {"passed": passed, "failed": None, "reason": ""}


def _space(job: Mapping[str, Any], names: set[str], peer: Peer) -> dict[str, Any]:
    """The names that the checks can use.

    Standard modules and builtins are ours even where the program has its own of that name: a check
    that compares with the program's ``set`` or ``math`` would compare as the program likes.
    """
    space: dict[str, Any] = {"__name__": "checks", "__builtins__": builtins}
    exec(compile(job["trusted"], "trusted.py", "exec"), space)  # noqa: S102 - trusted
    sources = [job["setup"], *job["checks"]]
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        name = node.id if isinstance(node, ast.Name) else None
        if name is None or hasattr(builtins, name) or name in space:
            continue
        if name in sys.stdlib_module_names and name != job["function"]:
            space[name] = importlib.import_module(name)
        elif name in names:
            space[name] = peer.ask("global", name)
    if job["function"]:
        space[job["function"]] = space["candidate"] = peer.ask("global", job["function"])
    exec(compile(job["setup"], "setup.py", "exec"), space)  # noqa: S102 - trusted
    return space


def _callable_of(job: Mapping[str, Any], names: set[str], peer: Peer) -> Any:
    """The function under test, or the method of that name of a class ``Solution``."""
    if job["function"] not in names and "Solution" in names:
        return getattr(peer.ask("global", "Solution")(), job["function"])
    return peer.ask("global", job["function"])


def _call(function: Any, case: Mapping[str, Any]) -> None:
    """Pass if one reading of the arguments gives what is expected."""
    reason = ""
    for arguments in case["alternatives"]:
        try:
            found = function(*arguments)
        except ConnectionError:
            raise
        except Exception as error:
            reason = reason or f"raised {error}"
            continue
        if any(same(found, expected) for expected in case["expected"]):
            return
        reason = reason or f"gave {found!r}, expected {case['expected'][0]!r}"
    raise AssertionError(reason)


def same(found: Any, expected: Any) -> bool:
    """Equality in which tuples are lists, keys are strings and floats are close, as in JSON."""
    if isinstance(found, list | tuple) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, dict) and isinstance(expected, dict):
        named = {str(key): value for key, value in found.items()}
        return named.keys() == expected.keys() and all(
            same(named[key], value) for key, value in expected.items()
        )
    if isinstance(found, float) or isinstance(expected, float):
        numbers = isinstance(found, int | float) and isinstance(expected, int | float)
        return numbers and math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    return bool(found == expected)


# ----- mode programs -------------------------------------------------------------------------


def _programs(job: Mapping[str, Any], control: IO[bytes]) -> None:
    for text in job["inputs"]:
        result = _run(job, text)
        control.write(json.dumps(result).encode() + b"\n")
        control.flush()


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
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: PTH123, SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: PTH123, SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: PTH123, SIM115
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


# ----- start ---------------------------------------------------------------------------------


def _confine(job: Mapping[str, Any]) -> None:
    """Become the user of this sandbox, who may do nothing, and set the limits."""
    if job["no_new_privileges"]:
        import ctypes

        ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if job["user"] is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    for name, value in job["limits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # A second above the soft limit on CPU time, so that reaching it is told by SIGXCPU.
        above = int(number == resource.RLIMIT_CPU and value != hard)
        resource.setrlimit(number, (value, value + above))


def main() -> None:
    """Do what the first line over the socket says, and send what came of it."""
    control = socket.socket(fileno=int(sys.argv[1]))
    file = control.makefile("rwb")
    job = json.loads(file.readline())
    _confine(job)
    # The interpreter is started without 'site', which would have defined them.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    for name, text in job["files"].items():
        with open(name, "w", encoding="utf-8") as target:  # noqa: PTH123
            target.write(text)
    if job["mode"] != "serve":
        file.write(b"{}\n")  # started
        file.flush()
    if job["mode"] == "programs":
        _programs(job, file)
        return
    peer = socket.socket(fileno=job["peer"])
    if job["mode"] == "serve":
        # The module must not hold the socket over which its sandbox is told what to do.
        file.close()
        control.close()
        _serve(job["code"], peer)
        return
    file.write(json.dumps(_check(job, peer)).encode() + b"\n")
    file.flush()


if __name__ == "__main__":
    main()

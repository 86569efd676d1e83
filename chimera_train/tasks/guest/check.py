"""Mode ``check``: trusted checks of a module that another sandbox serves."""

import ast
import builtins
import importlib
import math
import socket
import sys
from collections.abc import Mapping
from typing import Any

from chimera_train.tasks.guest.values import Peer

__all__ = ["check", "same"]

_ERROR_CHARACTERS = 600


def check(job: Mapping[str, Any], connection: socket.socket) -> dict[str, Any]:
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

"""Mode ``serve``: a program as a module, whose names are asked for from another sandbox."""

import builtins
import json
import socket
from typing import Any

from chimera_train.tasks.guest.values import decode, encode

__all__ = ["serve"]

_ERROR_CHARACTERS = 600


def serve(code: str, connection: socket.socket) -> None:
    """Run a program, then answer requests until there are no more."""
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

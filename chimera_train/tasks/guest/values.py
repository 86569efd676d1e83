"""Values that cross the socket between a served module and its checks."""

import builtins
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Peer", "Remote", "decode", "encode"]

_LONGEST_LINE = 16 << 20
_KINDS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


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
    for kind in _KINDS.values():
        if isinstance(value, kind):
            return {kind.__name__: [encode(item, keep) for item in kind.__iter__(value)]}
    if isinstance(value, dict):
        pairs = dict.items(value)
        return {"dict": [[encode(key, keep), encode(item, keep)] for key, item in pairs]}
    if isinstance(value, type):
        name = type.__dict__["__name__"].__get__(value)
        if value is getattr(builtins, name, None):
            return {"type": name}
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
    return _KINDS[kind](decode(item, peer, keep) for item in content)


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
            # Not the one that would end a check's loop over calls as if all had been made.
            known = isinstance(kind, type) and issubclass(kind, Exception)
            known = known and kind is not StopIteration
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

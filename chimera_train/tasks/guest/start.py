"""The start of a sandbox: giving up rights, setting limits, and the job."""

import builtins
import json
import os
import resource
import socket
import sys
from collections.abc import Mapping
from typing import Any

from chimera_train.tasks.guest.check import check
from chimera_train.tasks.guest.programs import run_all
from chimera_train.tasks.guest.serve import serve

__all__ = ["start"]


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


def start(control: socket.socket) -> None:
    """Do what the next line over the socket says, and send what comes of it, a line each."""
    file = control.makefile("rwb")
    job = json.loads(file.readline())

    def send(value: Any) -> None:
        file.write(json.dumps(value).encode() + b"\n")
        file.flush()

    _confine(job)
    # The interpreter is started without 'site', which would have defined them.
    vars(builtins).update(exit=sys.exit, quit=sys.exit)
    for name, text in job["files"].items():
        with open(name, "w", encoding="utf-8") as target:  # noqa: PTH123 - pathlib is slow to import
            target.write(text)
    send({"started": True})
    if job["mode"] == "programs":
        run_all(job, send)
    elif job["mode"] == "check":
        send(check(job, socket.socket(fileno=job["peer"])))
    else:
        # The module must not hold the socket over which its sandbox is told what to do.
        file.close()
        control.close()
        serve(job["code"], socket.socket(fileno=job["peer"]))

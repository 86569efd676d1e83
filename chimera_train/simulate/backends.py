"""Where the runs of a sweep are computed: in processes of this machine, or on a Ray cluster.

Each yields what is finished as soon as it is, in any order, so that it can be stored at once. That
is why Ray is not used through joblib: its backend there hands results out only when all are there.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import joblib

from chimera_train.errors import ChimeraError, ConfigError

__all__ = ["Task", "run_locally", "run_on_ray"]

T = TypeVar("T")
R = TypeVar("R")
Task = tuple[int, int]  # a cell's number and a seed

# How many of the unfinished runs Ray is asked about at a time; asking costs time for each.
_WATCHED = 1000

_PATIENCE_S = 10.0


def run_locally(
    function: Callable[[T, int], R], cells: Sequence[T], tasks: Sequence[Task], *, n_jobs: int
) -> Iterator[tuple[Task, R]]:
    """``function(cells[i], seed)`` for every task (i, seed), in ``n_jobs`` processes."""
    yield from joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        joblib.delayed(_with_task)(function, cells[task[0]], task) for task in tasks
    )


def run_on_ray(
    function: Callable[[T, int], R],
    cells: Sequence[T],
    tasks: Sequence[Task],
    *,
    n_jobs: int,
    address: str | None,
) -> Iterator[tuple[Task, R]]:
    """``function(cells[i], seed)`` for every task (i, seed), as tasks of one CPU each.

    Without ``address`` a Ray of ``n_jobs`` CPUs runs on this machine meanwhile. The machines of an
    existing cluster need this version of the package, but no file.

    Raises:
        ConfigError: Ray is not installed.
        ChimeraError: the cluster cannot be reached, or loses a run.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--backend ray needs Ray: pip install 'chimera-train[train,ray]'."
        ) from error
    _connect(ray, n_jobs, address)
    try:
        remote = ray.remote(_one)
        shared = ray.put((function, cells))
        pending = {remote.remote(shared, task): task for task in tasks}
        while pending:
            watched = [ref for ref, _ in zip(pending, range(_WATCHED), strict=False)]
            for ref in ray.wait(watched)[0]:
                yield pending.pop(ref), ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise ChimeraError(f"Ray lost a run, start the sweep again: {error}.") from error
    finally:
        ray.shutdown()


def _connect(ray: Any, n_jobs: int, address: str | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anyone
        ray.init(address="local", num_cpus=n_jobs, include_dashboard=False, **quiet)
        return
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host:  # else it is 'auto'; Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        raise ChimeraError(
            f"The Ray cluster at '{address}' cannot be reached: start it, set RAY_AUTH_TOKEN if it"
            " asks for a token, or leave out --ray-address for a Ray on this machine."
        ) from error


def _with_task(function: Callable[[T, int], R], cell: T, task: Task) -> tuple[Task, R]:
    return task, function(cell, task[1])


def _one(shared: tuple[Callable[[T, int], R], Sequence[T]], task: Task) -> R:
    function, cells = shared
    return function(cells[task[0]], task[1])

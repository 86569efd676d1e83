"""What a prediction is worth: how long requests queue when the shortest predicted goes first.

One server that finishes what it has begun, jobs that arrive at random (M/G/1). A job is a judged
row: its service time is proportional to the length Y. If the server takes the waiting job with the
smallest key, keys are priority classes, and the mean queue time of class k is known (Cobham 1954,
"Priority assignment in waiting line problems"):

    W_k = W_0 / ((1 − σ_{<k}) (1 − σ_{≤k})),   W_0 = λ E[S²] / 2

where σ is the load of the jobs whose key is smaller (or not larger). With every key the same it is
first come, first served (Pollaczek and Khinchine), with key = length the best order there is
(Phipps 1956). So the long run of such a queue is evaluated here, not simulated.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from chimera_train.length.metrics import Numbers, resampled_interval, split_by

__all__ = ["LOADS", "ORDERS", "mean_queue", "queue_value"]

LOADS = (0.7, 0.9)
ORDERS = ("fcfs", "stjf", "oracle", "prompt_length", "stage_median")


def mean_queue(lengths: Numbers, keys: Numbers, load: float) -> float:
    """The mean queue time, in mean service times, of jobs drawn from ``lengths`` by ``keys``.

    Args:
        lengths: service times, shape (n,), in any unit; not all 0.
        keys: the waiting job with the smallest is served next, equal ones as they came.
        load: share of its time that the server is busy, below 1.
    """
    n = len(lengths)
    _, job_class = np.unique(keys, return_inverse=True)
    of_class = load * np.bincount(job_class, weights=lengths) / lengths.sum()
    not_larger = np.cumsum(of_class)
    smaller = not_larger - of_class
    residual = load * (lengths @ lengths) * n / lengths.sum() ** 2 / 2
    queue = residual / ((1 - smaller) * (1 - not_larger))
    return float(queue @ np.bincount(job_class) / n)


def queue_value(judged: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Load → order → queue time of the judged rows under it.

    The ``ORDERS`` are fcfs; stjf by what was predicted; its oracle; and stjf by prompt length and
    by the median of a cell. ``queue_service_times`` is the mean queue time in mean service
    times, ``ratio_to_fcfs`` the same against FCFS, with an interval over programs (``ci``) for
    what was predicted. An engine serves one model, and predictions of different folds cannot be
    compared: each model and fold has a server of its own, at the same load, and figures are means
    weighted by rows. Empty if no row has a length.
    """
    columns = {
        "fcfs": np.zeros(len(judged)),
        "stjf": judged["predicted"].to_numpy(np.float64),
        "oracle": judged["target_tokens"].to_numpy(np.float64),
        "prompt_length": judged["prompt_length"].to_numpy(np.float64),
        "stage_median": judged["stage_median"].to_numpy(np.float64),
    }
    folds = judged["fold"].to_numpy(np.int64)
    server = judged.groupby(["model", "fold"], sort=True).ngroup().to_numpy().astype(np.int64)
    if not columns["oracle"].any():
        return {}

    value: dict[str, Any] = {}
    for load in LOADS:
        queues = partial(_queues, columns, server, load)
        of_all = queues(np.arange(len(judged), dtype=np.int64), ORDERS)
        value[str(load)] = {
            order: {"queue_service_times": queue, "ratio_to_fcfs": queue / of_all["fcfs"]}
            for order, queue in of_all.items()
        }
        interval = resampled_interval(
            partial(_ratio, queues),
            folds,
            judged["program_id"].to_numpy(),
            np.random.default_rng(seed),
        )
        value[str(load)]["stjf"]["ci"] = list(interval)
    return value


def _ratio(queues: Callable[..., dict[str, float]], rows: npt.NDArray[np.int64]) -> float:
    queue = queues(rows, ("fcfs", "stjf"))
    return queue["stjf"] / queue["fcfs"] if queue["fcfs"] > 0 else 1.0


def _queues(
    columns: Mapping[str, Numbers],
    server: npt.NDArray[np.int64],
    load: float,
    rows: npt.NDArray[np.int64],
    orders: Sequence[str],
) -> dict[str, float]:
    """Order → mean queue over the servers of ``rows``; nobody queues where no job has work."""
    lengths = columns["oracle"]
    groups = [rows[positions] for positions in split_by(server[rows])]
    busy = [group for group in groups if lengths[group].any()]
    n_rows = sum(map(len, busy))
    return {
        order: sum(
            mean_queue(lengths[group], columns[order][group], load) * len(group) / n_rows
            for group in busy
        )
        for order in orders
    }

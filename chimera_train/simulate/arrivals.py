"""When programs arrive, on which question, and which of a model's samples they follow.

All three are drawn before anything is simulated and from the seed alone, so that under one seed
every policy meets the same programs at the same times, and answers differ only by its decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimera_train.errors import DataError
from chimera_train.simulate.workload import Workload

__all__ = ["Arrivals", "closed_loop", "poisson", "recorded"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Programs in order of arrival; every array has shape (n_programs,).

    Attributes:
        times_ms: arrival times, not decreasing; NaN for the last of them if these arrive when an
            earlier program has ended, each after one.
        questions: indices into ``Workload.questions``.
        luck: uniform in [0, 1): of a model's n samples on the question, the program follows number
            ⌊luck·n⌋.
        think_ms: how long after that one's end they arrive; None if there are none.
    """

    times_ms: npt.NDArray[np.float64]
    questions: npt.NDArray[np.int64]
    luck: npt.NDArray[np.float64]
    think_ms: npt.NDArray[np.float64] | None = None


def poisson(workload: Workload, *, rate_per_s: float, programs: int, seed: int) -> Arrivals:
    """``programs`` arrivals at exponential intervals, on questions drawn with replacement.

    The same seed at another rate gives the same programs at proportionally other times.
    """
    rng = np.random.default_rng(seed)
    gaps_ms = rng.exponential(1.0, programs) * (1000.0 / rate_per_s)
    return Arrivals(
        np.cumsum(gaps_ms),
        rng.integers(len(workload.questions), size=programs),
        rng.random(programs),
    )


def closed_loop(
    workload: Workload, *, users: int, think_time_s: float, programs: int, seed: int
) -> Arrivals:
    """``users`` that each start a program when their last one has ended and they have thought.

    Thinking takes exponential time of mean ``think_time_s``, also before the first program.
    Questions are drawn with replacement.
    """
    rng = np.random.default_rng(seed)
    think_ms = rng.exponential(1.0, programs) * (1000.0 * think_time_s)
    times_ms = np.full(programs, np.nan)
    times_ms[:users] = np.sort(think_ms[:users])
    return Arrivals(
        times_ms,
        rng.integers(len(workload.questions), size=programs),
        rng.random(programs),
        think_ms,
    )


def recorded(
    workload: Workload,
    *,
    times_ms: Sequence[float],
    seed: int,
    questions: Sequence[str] | None = None,
) -> Arrivals:
    """Arrivals at given times, on given question ids or, without them, on drawn ones.

    Raises:
        DataError: a question is not in the workload.
    """
    rng = np.random.default_rng(seed)
    n = len(times_ms)
    if questions is None:
        drawn = rng.integers(len(workload.questions), size=n)
    else:
        index = {question: i for i, question in enumerate(workload.questions)}
        for question in questions:
            if question not in index:
                raise DataError(f"Question '{question}' is not among the simulated ones.")
        drawn = np.array([index[question] for question in questions], dtype=np.int64)
    return Arrivals(np.asarray(times_ms, dtype=np.float64), drawn, rng.random(n))

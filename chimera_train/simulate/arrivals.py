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

__all__ = [
    "Arrivals",
    "closed_loop",
    "deterministic",
    "mmpp",
    "poisson",
    "recorded",
    "rescaled",
]


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
    return _on_drawn_questions(workload, np.cumsum(gaps_ms), rng)


def deterministic(workload: Workload, *, rate_per_s: float, programs: int, seed: int) -> Arrivals:
    """``programs`` arrivals at equal intervals, the first after one, on drawn questions."""
    times_ms = np.arange(1, programs + 1, dtype=np.float64) * (1000.0 / rate_per_s)
    return _on_drawn_questions(workload, times_ms, np.random.default_rng(seed))


def mmpp(
    workload: Workload,
    *,
    rate_per_s: float,
    programs: int,
    rate_ratio: float,
    high_fraction: float,
    correlation_time_s: float,
    seed: int,
) -> Arrivals:
    """``programs`` arrivals of a two-state Markov-modulated Poisson process, on drawn questions.

    The process is in its high state ``high_fraction`` f of the time, where it is ``rate_ratio`` r
    times as fast as in the low one; ``rate_per_s`` is the mean of both. It switches from low to
    high at rate f/T_c and back at (1−f)/T_c, so that its speed at two moments that are t apart is
    correlated by exp(−t/T_c). It starts in either state with the probability of that state.

    The same seed at another rate gives the same programs in bursts at the same times.
    """
    rng = np.random.default_rng(seed)
    # An arrival comes when the rate, integrated over time, reaches that of a process of rate one.
    due = np.cumsum(rng.exponential(1.0, programs))
    arrivals = _on_drawn_questions(workload, due, rng)
    low_per_s = rate_per_s / (1.0 - high_fraction + high_fraction * rate_ratio)
    high = bool(rng.random() < high_fraction)
    ends_s, integral = [0.0], [0.0]
    while integral[-1] < due[-1]:
        leaving_per_s = (1.0 - high_fraction if high else high_fraction) / correlation_time_s
        stay_s = rng.exponential(1.0 / leaving_per_s)
        ends_s.append(ends_s[-1] + stay_s)
        integral.append(integral[-1] + stay_s * low_per_s * (rate_ratio if high else 1.0))
        high = not high
    times_ms = 1000.0 * np.interp(due, integral, ends_s)
    return Arrivals(times_ms, arrivals.questions, arrivals.luck)


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
    times_ms: Sequence[float] | npt.NDArray[np.float64],
    seed: int,
    questions: Sequence[str] | None = None,
) -> Arrivals:
    """Arrivals at given times, on given question ids or, without them, on drawn ones.

    Raises:
        DataError: a question is not in the workload.
    """
    rng = np.random.default_rng(seed)
    times = np.asarray(times_ms, dtype=np.float64)
    if questions is None:
        return _on_drawn_questions(workload, times, rng)
    index = {question: i for i, question in enumerate(workload.questions)}
    for question in questions:
        if question not in index:
            raise DataError(f"Question '{question}' is not among the simulated ones.")
    named = np.array([index[question] for question in questions], dtype=np.int64)
    return Arrivals(times, named, rng.random(times.size))


def rescaled(times_ms: npt.NDArray[np.float64], rate_per_s: float) -> npt.NDArray[np.float64]:
    """Times from 0 on, not decreasing, stretched so that their mean interval is 1/``rate_per_s``.

    Raises:
        DataError: all are the same moment, or there is only one.
    """
    length_ms = times_ms[-1] - times_ms[0]
    if length_ms == 0:
        raise DataError(
            f"{times_ms.size} recorded arrival(s) at a single moment have no rate that could be"
            " changed: record more of them, or leave out rates_per_s."
        )
    wanted_ms = 1000.0 * (times_ms.size - 1) / rate_per_s
    return (times_ms - times_ms[0]) / length_ms * wanted_ms


def _on_drawn_questions(
    workload: Workload, times_ms: npt.NDArray[np.float64], rng: np.random.Generator
) -> Arrivals:
    n = times_ms.size
    return Arrivals(times_ms, rng.integers(len(workload.questions), size=n), rng.random(n))

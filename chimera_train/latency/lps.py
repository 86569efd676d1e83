"""Fitting limited processor sharing to the waits seen at an endpoint (``predict.lps``).

What is fitted are the mean waits of loads, each a difference of mean TTFTs: a load's less that of
the lowest load, after the part that grows with the prompt has been taken off. The model's side is
the same difference, so the lowest load need not be free of waits.

- Waits span decades and errors of all of them matter, so logarithms are compared: of the wait and
  the floor together, which is a TTFT. What a wait of a small part of the floor is exactly matters
  to nobody, and a real engine's TTFT rises that much from batching alone.
- A saturated load has no mean wait; its throughput is μ, and is compared with it.
- k is seen directly, as the *knee*: how many others are in the endpoint when an arriving request
  begins to wait. It is taken unless the mean waits fit another k significantly better (5 %). They
  do where requests do not share one capacity: in an endpoint of c seats that each have their own
  pace, requests wait from c others on, but their mean waits follow a smaller exponent. Then k is
  the exponent, and the formula describes the waits, not the endpoint.
- The mean of n waits near saturation varies far more than the waits seen in one run show, because a
  long queue may not have had the time to form or to drain. In heavy traffic the relative standard
  deviation is 2 / ((1 - α/μ) √n) (Whitt, Planning queueing simulations, 1989, for Poisson arrivals
  and exponential work), where n counts the requests that wait: the others tell nothing about a
  queue. The larger of that and the spread of batch means is a load's error, from which weights and
  intervals come.

All of this is ours: the paper (SFS, average case) gives the formula and k's meaning, but no method.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.stats import linregress

from chimera_train.errors import DataError
from chimera_train.latency.loads import Load
from chimera_train.predict.lps import ProcessorSharing, mean_wait_ms

__all__ = ["Waits", "ms_per_token"]

_BATCHES = 20
_RESAMPLES = 400
# Less than this share of the floor above it may as well be the batching of the endpoint.
_NO_WAIT = 0.5
# No endpoint follows the formula more closely: without it, the loads with the smallest waits, which
# are the most precise, would decide alone.
_MODEL_ERROR = 0.05
_PASSES = 3
# Every k up to 64, then steps of about 4 %, which change no prediction that can be measured.
_K = np.unique(np.concatenate([np.arange(1, 65), np.geomspace(64, 4096, 100)]).astype(np.int64))
# μ over the highest rate without saturation, less 1: beyond 10 times that rate nothing waits.
_EXCESS = np.geomspace(1e-3, 9.0, 400)

# The 95 % quantile of chi-square with one degree of freedom.
_CONTRADICTED = 3.84

Floats = npt.NDArray[np.float64]


class Waits:
    """The waits of an endpoint's loads, and the weighted least squares over them.

    The rows of the least squares are the loads that are not saturated, but for the lowest, and then
    the saturated ones.

    Args:
        loads: by ascending rate; the lowest is not saturated.
        per_token: what a prompt token adds to TTFT where nothing waits, in ms.
        source: the file they come from, for errors.

    Raises:
        DataError: no load waits, so that nothing tells μ and k.
    """

    def __init__(self, loads: Sequence[Load], per_token: float, source: Path) -> None:
        self._open = [load for load in loads if not load.saturated]
        self._saturated = [load for load in loads if load.saturated]
        self._per_token, self._source = per_token, source
        self._rates = np.array([load.rate_per_s for load in self._open])
        batches = np.array([_batch_means(load, per_token) for load in self._open])
        self._rest_ms = batches.mean(axis=1)
        error_ms = batches.std(axis=1, ddof=1) / np.sqrt(_BATCHES)
        self._floor_ms = float(self._open[0].ttft_ms.mean())
        self._no_wait_ms = max(_NO_WAIT * self._floor_ms, 3 * error_ms[0])

        wait_ms = np.maximum(self._rest_ms - self._rest_ms[0], 0)
        error_ms = np.hypot(error_ms, error_ms[0])
        waiting = wait_ms > self._no_wait_ms
        if not (waiting.any() or self._saturated):
            raise DataError(
                f"{source}: all loads are at the latency floor, so mu and k cannot be told: the"
                f" highest rate seen is {self._rates[-1]:.4g}/s; observe higher ones, until"
                " requests wait."
            )
        self._waiting = waiting
        self._n = np.array([len(load.ttft_ms) for load in self._open[1:]])
        self._waited = np.array([self._of_waiting(load).mean() for load in self._open[1:]])

        compared_ms = wait_ms[1:] + self._floor_ms
        self._wait_ms = wait_ms[1:]
        throughput = [load.throughput_per_s for load in self._saturated]
        self._target = np.log([*compared_ms, *throughput])
        # Half of a saturated load's requests were counted, as if by a Poisson process.
        counted = [1 / np.sqrt(len(load.ttft_ms) / 2) for load in self._saturated]
        self._seen_error = np.array([*error_ms[1:] / compared_ms, *counted])
        self._mu = self._rates[-1] * (1 + _EXCESS)
        self._table = self._predictions(_K[:, None], self._mu)  # (rows, n_k, n_mu)

    def fit(self, left_out: Load | None = None) -> ProcessorSharing:
        """The model of all loads but ``left_out``.

        Raises:
            DataError: the waits do not grow with the rate as the model has it, or contradict that
                the endpoint kept up with the highest.
        """
        rows = [*self._open[1:], *self._saturated]
        used = np.array([load is not left_out for load in rows])
        # Weights need errors and errors a fit; the third pass hardly changes anything any more.
        seen, knee_weight = self._reweighted(used, self.knee(left_out)[0])
        _, mu, k = seen
        if seen[0] - self._best(knee_weight)[0] > _CONTRADICTED:
            free, _ = self._reweighted(used, None)
            if free[2] != _K[-1]:  # waits that set no bound to k contradict none
                _, mu, k = free
        if mu > 0.99 * self._mu[-1]:
            raise DataError(
                f"{self._source}: the waits do not grow with the arrival rate as limited processor"
                " sharing has it: observe rates nearer to saturation, and each for longer."
            )
        if mu < self._mu[1]:
            raise DataError(
                f"{self._source}: the waits put the capacity at or below"
                f" {self._rates[-1]:.4g}/s, a rate that the endpoint seems to have kept up with:"
                " observe that rate for longer, or leave it out."
            )
        floor_ms = self._rest_ms[0] - mean_wait_ms(self._rates[0], mu, k)
        return ProcessorSharing(
            mu_per_s=mu,
            k=k,
            prefill_ms=max(float(floor_ms), 0.0),
            prefill_ms_per_token=self._per_token,
            observed_per_s=(float(self._rates[0]), float(self._rates[-1])),
        )

    def fit_without(self, load: Load) -> ProcessorSharing | None:
        """The model that the other loads give; None where they give none.

        ``load`` is neither saturated nor the lowest. That the endpoint kept up with it is known
        even so: μ is not searched below its rate.
        """
        index = next(i for i, mine in enumerate(self._open) if mine is load)
        if not (self._waiting.sum() > self._waiting[index] or self._saturated):
            return None
        try:
            return self.fit(load)
        except DataError:
            return None

    def intervals(
        self, model: ProcessorSharing, rng: np.random.Generator
    ) -> dict[str, list[float]]:
        """95 % percentile intervals of mu_per_s and k, by parametric bootstrap on the grid.

        That of mu_per_s is for the k of ``model``; that of k is what the mean waits alone allow.
        """
        error = self._error(model.mu_per_s, model.k)
        weight = 1 / error**2
        targets = self._target + error * rng.standard_normal((_RESAMPLES, len(error)))
        own = self._predictions(np.array([[model.k]]), self._mu)
        mu = self._mu[_nearest(own, targets, weight) % len(self._mu)]
        k = _K[_nearest(self._table, targets, weight) // len(self._mu)]
        return {
            name: [float(end) for end in np.quantile(values, [0.025, 0.975])]
            for name, values in (("mu_per_s", mu), ("k", k))
        }

    def knee(self, left_out: Load | None = None) -> tuple[int, float]:
        """How many others are in the endpoint when an arriving request begins to wait; at least 1.

        It is the number that tells best which requests waited. The second value is the share of
        requests about which it is wrong.
        """
        loads = [load for load in (*self._open, *self._saturated) if load is not left_out]
        others = np.concatenate([load.others for load in loads])
        waited = np.concatenate([self._of_waiting(load) for load in loads])
        # With the knee at N, those that waited with fewer others are wrong, and those that did not
        # wait with N or more.
        bins = int(others.max()) + 1
        wrong = np.full(bins + 1, np.count_nonzero(~waited))
        wrong[1:] += np.cumsum(np.bincount(others[waited], minlength=bins))
        wrong[1:] -= np.cumsum(np.bincount(others[~waited], minlength=bins))
        knee = max(int(wrong.argmin()), 1)
        return knee, float(wrong[knee] / len(others))

    def _of_waiting(self, load: Load) -> npt.NDArray[np.bool_]:
        """Which requests waited, shape (n,)."""
        return _without_prompt(load, self._per_token) - self._rest_ms[0] > self._no_wait_ms

    def _reweighted(
        self, used: npt.NDArray[np.bool_], k: int | None
    ) -> tuple[tuple[float, float, int], Floats]:
        """Cost, μ and k of least squares, at this k or at the best, and the weights of the rows."""
        weight = used / np.maximum(self._seen_error, _MODEL_ERROR) ** 2
        for _ in range(_PASSES):
            best = self._best(weight) if k is None else self._best_mu(weight, k)
            weight = used / self._error(*best[1:]) ** 2
        return (self._best(weight) if k is None else self._best_mu(weight, k)), weight

    def _error(self, mu: float, k: int) -> Floats:
        """Standard deviation of every row, shape (rows,).

        What a model expects counts where more was not seen: a load may be at the floor by luck.
        """
        load = self._rates[1:] / mu
        wait_ms = np.maximum(self._wait_ms, mean_wait_ms(self._rates[1:], mu, k))
        waited = self._n * np.maximum(self._waited, load**k)
        # How much of a relative error of the wait is left in what is compared.
        share = wait_ms / (wait_ms + self._floor_ms)
        of_wait = share * 2 / ((1 - load) * np.sqrt(np.maximum(waited, 1)))
        theory = np.concatenate([of_wait, np.zeros(len(self._saturated))])
        return np.maximum(np.maximum(self._seen_error, theory), _MODEL_ERROR)

    def _best(self, weight: Floats) -> tuple[float, float, int]:
        """Cost, μ and k of least squares."""
        cost = np.tensordot(weight, (self._table - self._target[:, None, None]) ** 2, axes=1)
        return self._best_mu(weight, int(_K[cost.min(axis=1).argmin()]))

    def _best_mu(self, weight: Floats, k: int) -> tuple[float, float, int]:
        """Cost, μ and k of least squares at this k: the best of the grid, refined."""

        def cost_of(mu: float) -> float:
            return float(self._costs(weight, k, np.array([mu]))[0])

        j = int(self._costs(weight, k, self._mu).argmin())
        around = float(self._mu[max(j - 1, 0)]), float(self._mu[min(j + 1, len(self._mu) - 1)])
        found = minimize_scalar(cost_of, bounds=around, method="bounded")
        return float(found.fun), float(found.x), k

    def _costs(self, weight: Floats, k: int, mu: Floats) -> Floats:
        """Of each μ, shape (n_mu,)."""
        return weight @ (self._predictions(np.array(k), mu) - self._target[:, None]) ** 2

    def _predictions(self, k: npt.NDArray[np.int64], mu: Floats) -> Floats:
        """Of every row, shape (rows, *shape of k and μ broadcast)."""
        waits = np.array([mean_wait_ms(rate, mu, k) for rate in self._rates])
        compared = np.log(waits[1:] - waits[0] + self._floor_ms)
        capacity = np.broadcast_to(np.log(mu), (len(self._saturated), *waits.shape[1:]))
        return np.concatenate([compared, capacity])


def ms_per_token(lowest: Load) -> float:
    """What a prompt token adds to TTFT where nothing waits; 0 unless chance is ruled out."""
    if np.ptp(lowest.prompt_tokens) == 0:
        return 0.0
    line = linregress(lowest.prompt_tokens, lowest.ttft_ms)
    return float(line.slope) if line.slope > 3 * line.stderr else 0.0


def _without_prompt(load: Load, per_token: float) -> Floats:
    """TTFT in ms without the prompt's part, shape (n,)."""
    return load.ttft_ms - per_token * load.prompt_tokens


def _batch_means(load: Load, per_token: float) -> Floats:
    """Their means in 20 stretches of consecutive requests, shape (20,)."""
    parts = np.array_split(_without_prompt(load, per_token), _BATCHES)
    return np.array([part.mean() for part in parts])


def _nearest(table: Floats, targets: Floats, weight: Floats) -> npt.NDArray[np.int64]:
    """The flat index of the column of ``table`` (rows, ...) next to each of ``targets`` (n, rows).

    Of Σ w (y - t)² the part that does not depend on the column is left out.
    """
    columns = table.reshape(len(weight), -1)
    squares = weight @ columns**2
    return np.array([(squares - 2 * (weight * target) @ columns).argmin() for target in targets])

"""The average case (SFS): mean TTFT of an endpoint whose state cannot be seen, by arrival rate.

Limited processor sharing: the endpoint shares a capacity of μ requests per second among at most k
of them, the others wait in order of arrival. With Poisson arrivals of rate α and exponential work
the number of requests in it is that of M/M/1, so by Little's law a request waits in the mean

    W = (α/μ)^k / (μ - α)      for α < μ, without bound otherwise: the endpoint is saturated.

W is the wait before service. What is left of TTFT is the request's own prefill and, which is ours
and not published, a part that rises with α: an engine that batches is slower for every request long
before one has to wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from chimera_train.config import Settings, load_manifest

__all__ = [
    "AVERAGE_CASE_SCHEMA", "AverageCase", "ObservedLoad", "load_average_case", "mean_ttft_ms",
    "mean_wait_ms",
]  # fmt: skip

AVERAGE_CASE_SCHEMA = 1

Rates = npt.NDArray[np.float64] | np.float64


class ObservedLoad(Settings):
    """Requests that arrived at about one rate.

    Attributes:
        ttft_ms: the mean.
        saturated: more and more of them waited, so that there is no mean.
        held_out_error_percent: of the prediction by a fit on the other loads, above 0 where it is
            too long; None for a saturated load and for the highest other one, beyond which a fit
            on the rest would extrapolate.
    """

    rate_per_s: float
    requests: int
    ttft_ms: float
    saturated: bool
    held_out_error_percent: float | None = None


class AverageCase(Settings):
    """What ``chimera-train fit average-case`` writes.

    Attributes:
        mu_per_s: requests per second that the endpoint completes when it is never idle.
        k: exponent of the load in W, to SFS the requests that are served at once.
        floor_ms: TTFT of a request that finds the endpoint empty.
        floor_ms_s: by how much that rises with every request per second, ms·s.
        mape: mean absolute percentage error of the mean TTFT of a load that was left out of the
            fit: ``used`` (this file), ``rising`` and ``published`` (with and without a floor that
            rises), ``constant`` and ``mm1`` (without, k = 1).
        loads: what was observed, by ascending rate.
    """

    schema_version: int
    kind: Literal["lps"]
    mu_per_s: float = Field(gt=0)
    k: int = Field(ge=1)
    floor_ms: float = Field(ge=0)
    floor_ms_s: float = Field(ge=0)
    mape: dict[str, float]
    loads: list[ObservedLoad]
    fitted_on: dict[str, Any]

    def is_saturated(self, rate_per_s: float) -> bool:
        """Whether requests arrive at least as fast as the endpoint can complete them."""
        return rate_per_s >= self.mu_per_s

    def ttft_ms(self, rate_per_s: float) -> float:
        """Mean TTFT at a rate; infinite where the endpoint is saturated."""
        fitted = self.mu_per_s, self.k, self.floor_ms, self.floor_ms_s
        return float(mean_ttft_ms(np.float64(rate_per_s), *fitted))


def mean_ttft_ms(
    rate_per_s: Rates, mu_per_s: float, k: int, floor_ms: float, floor_ms_s: float
) -> npt.NDArray[np.float64]:
    """TTFT in ms at every rate, of the same shape."""
    return floor_ms + floor_ms_s * rate_per_s + mean_wait_ms(rate_per_s, mu_per_s, k)


def mean_wait_ms(rate_per_s: Rates, mu_per_s: float, k: int) -> npt.NDArray[np.float64]:
    """W in ms at every rate, of the same shape; infinite from μ on."""
    stable = rate_per_s < mu_per_s
    load = np.where(stable, rate_per_s / mu_per_s, 0.0)
    return np.where(stable, 1000 * load**k / (mu_per_s * (1 - load)), np.inf)


def load_average_case(path: Path) -> AverageCase:
    """Read a file of ``chimera-train fit average-case``.

    Raises:
        DataError: it is missing, damaged, or newer than this version.
    """
    return load_manifest(path, AverageCase, AVERAGE_CASE_SCHEMA)

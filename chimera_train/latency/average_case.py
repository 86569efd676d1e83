"""Fitting the average case of an endpoint (SFS) to observed requests, and judging it.

μ and k are searched on a grid; given them the floor and its rise follow from least squares with
neither below 0. Errors are relative to the measured mean, or the highest load alone would decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import minimize_scalar, nnls

from chimera_train.errors import DataError
from chimera_train.predict.average_case import (
    AVERAGE_CASE_SCHEMA,
    AverageCase,
    ObservedLoad,
    mean_ttft_ms,
    mean_wait_ms,
)

__all__ = ["fit_average_case", "observed_loads"]

_MIN_LOADS = 5  # four numbers are fitted, and a load is held out
_MAX_LOADS = 10
_MIN_REQUESTS = 30
# First tokens may lag behind arrivals by chance; by more, requests have piled up.
_PILED_UP_SHARE = 0.05
_PILED_UP = 10
_KS = np.unique(np.geomspace(1, 512, 60).round().astype(int))
# Capacities that are tried lie between the highest rate at which the endpoint kept up and the
# lowest at which it did not; where it always did, the latter is taken for so many times the first.
_HIGHEST_CAPACITY = 30.0
_CAPACITIES_TRIED = 80
# A floor that rises looks much like a small k: it must predict held-out loads better by this share.
_WORTHWHILE = 0.1

Floats = npt.NDArray[np.float64]


def observed_loads(requests: Sequence[pd.DataFrame], window_s: float | None) -> list[ObservedLoad]:
    """The loads of recordings, by ascending rate.

    Args:
        requests: recordings of one endpoint, with arrival_ms (ascending) and ttft_ms.
        window_s: a load is a window of so many seconds, which is long against a request; windows
            of like rates are joined where there are many. None takes each recording for one load.
    """
    rows = [window for recording in requests for window in _windows(recording, window_s)]
    windows = pd.DataFrame(rows, columns=["rate_per_s", "requests", "ttft_ms", "saturated"])
    windows = windows.sort_values(["saturated", "rate_per_s"], ignore_index=True)
    n_stable = int((~windows["saturated"].astype(bool)).sum())
    # The stable ones, which come first, are dealt to as many groups as there may be.
    joined = windows.index * min(_MAX_LOADS, n_stable) // max(n_stable, 1)
    label = np.where(windows.index < n_stable, joined, windows.index + _MAX_LOADS)
    loads = [
        ObservedLoad(
            rate_per_s=float(group["rate_per_s"].mean()),
            requests=int(group["requests"].sum()),
            ttft_ms=float(np.average(group["ttft_ms"], weights=group["requests"])),
            saturated=bool(group["saturated"].iloc[0]),
        )
        for _, group in windows.groupby(label)
    ]
    return sorted(loads, key=lambda load: load.rate_per_s)


def _windows(
    recording: pd.DataFrame, window_s: float | None
) -> Iterator[tuple[float, int, float, bool]]:
    """Rate, requests, mean TTFT, and whether requests piled up, of each window of a recording."""
    arrival_s = recording["arrival_ms"].to_numpy() / 1000
    if arrival_s[0] == arrival_s[-1]:
        return  # no time passed, so there is no rate
    ttft_ms = recording["ttft_ms"].to_numpy()
    first_token_s = arrival_s + ttft_ms / 1000
    edges = np.array([arrival_s[0], np.nextafter(arrival_s[-1], np.inf)])
    if window_s is not None:
        edges = np.arange(arrival_s[0], arrival_s[-1], window_s)
    for start_s, end_s in pairwise(edges):
        inside = (start_s <= arrival_s) & (arrival_s < end_s)
        n = int(inside.sum())
        if n >= _MIN_REQUESTS:
            answered = int(((start_s <= first_token_s) & (first_token_s < end_s)).sum())
            piled_up = n - answered > max(_PILED_UP_SHARE * n, _PILED_UP)
            yield n / (end_s - start_s), n, float(ttft_ms[inside].mean()), piled_up


def fit_average_case(loads: Sequence[ObservedLoad], sources: Sequence[Path]) -> AverageCase:
    """Fit μ, k and the floor on the loads that are not saturated.

    Raises:
        DataError: these are too few.
    """
    stable = [load for load in loads if not load.saturated]
    if len(stable) < _MIN_LOADS:
        raise DataError(
            f"{', '.join(map(str, sources))}: the endpoint keeps up with {len(stable)} arrival"
            f" rates of at least {_MIN_REQUESTS} requests each and not with"
            f" {len(loads) - len(stable)}; it takes {_MIN_LOADS} of the first: observe more and"
            " lower rates, or cut a long recording with --window-s."
        )
    stable_rates = [load.rate_per_s for load in stable]
    overrun = [load.rate_per_s for load in loads if load.saturated]
    observed = _Observed.of(stable_rates, [load.ttft_ms for load in stable], overrun)
    errors = {name: _held_out_errors(fit, observed) for name, fit in _MODELS.items()}
    mape = {name: float(np.abs(of_model).mean()) for name, of_model in errors.items()}
    used = "rising" if mape["rising"] < (1 - _WORTHWHILE) * mape["published"] else "published"
    of_rate = dict(zip(stable_rates[:-1], errors[used].tolist(), strict=True))
    mu, k, floor_ms, floor_ms_s = _MODELS[used](observed)
    return AverageCase(
        schema_version=AVERAGE_CASE_SCHEMA,
        kind="lps",
        mu_per_s=mu,
        k=k,
        floor_ms=floor_ms,
        floor_ms_s=floor_ms_s,
        mape={"used": mape[used], **mape},
        loads=[
            load.model_copy(update={"held_out_error_percent": of_rate.get(load.rate_per_s)})
            for load in loads
        ],
        fitted_on={
            "requests": sum(load.requests for load in stable),
            "sources": [str(source) for source in sources],
            "rates_per_s": [stable_rates[0], stable_rates[-1]],
        },
    )


_Fitted = tuple[float, int, float, float]  # μ per s, k, the floor in ms and its rise in ms·s


@dataclass(frozen=True, slots=True)
class _Observed:
    """Mean TTFT of each rate, shape (n,), and the capacities that may explain them."""

    rates: Floats
    ttfts_ms: Floats
    capacities: Floats

    @classmethod
    def of(
        cls, rates: Sequence[float], ttfts_ms: Sequence[float], overrun: Sequence[float]
    ) -> _Observed:
        """``rates`` ascend; at the rates ``overrun`` the endpoint did not keep up."""
        low = rates[-1]
        high = min([rate for rate in overrun if rate > low], default=low * _HIGHEST_CAPACITY)
        capacities = low + (high - low) * np.geomspace(1e-4, 1, _CAPACITIES_TRIED)
        return cls(np.array(rates), np.array(ttfts_ms), capacities)

    def without(self, i: int) -> _Observed:
        return replace(self, rates=np.delete(self.rates, i), ttfts_ms=np.delete(self.ttfts_ms, i))


def _fit_rising(observed: _Observed) -> _Fitted:
    rates = observed.rates
    return _search(observed, _KS, np.column_stack([np.ones_like(rates), rates]))


def _fit_published(observed: _Observed) -> _Fitted:
    return _search(observed, _KS, np.ones((len(observed.rates), 1)))


def _fit_mm1(observed: _Observed) -> _Fitted:
    return _search(observed, [1], np.ones((len(observed.rates), 1)))


def _fit_constant(observed: _Observed) -> _Fitted:
    inverse = 1 / observed.ttfts_ms
    return np.inf, 1, float(inverse.sum() / (inverse**2).sum()), 0.0


_MODELS = {
    "rising": _fit_rising,
    "published": _fit_published,
    "constant": _fit_constant,
    "mm1": _fit_mm1,
}


def _held_out_errors(fit: Callable[[_Observed], _Fitted], observed: _Observed) -> Floats:
    """Percentage error at each rate but the highest by a fit on the others, shape (n - 1,)."""
    errors = []
    for i, (rate, ttft_ms) in enumerate(zip(observed.rates[:-1], observed.ttfts_ms, strict=False)):
        predicted_ms = float(mean_ttft_ms(rate, *fit(observed.without(i))))
        errors.append(100 * (predicted_ms / ttft_ms - 1))
    return np.array(errors)


def _search(observed: _Observed, ks: Iterable[int], floor: Floats) -> _Fitted:
    """μ, k and what each column of ``floor`` (n, 1 or 2) is multiplied by."""
    rates, ttfts_ms, capacities = observed.rates, observed.ttfts_ms, observed.capacities

    def solve(mu: float, k: int) -> tuple[Floats, float]:
        wait_ms = mean_wait_ms(rates, mu, k)
        return nnls(floor / ttfts_ms[:, None], 1 - wait_ms / ttfts_ms)

    losses = {k: [solve(mu, k)[1] for mu in capacities] for k in ks}
    k = min(losses, key=lambda k: min(losses[k]))
    best = int(np.argmin(losses[k]))
    around = capacities[max(best - 1, 0)], capacities[min(best + 1, len(capacities) - 1)]
    found = minimize_scalar(lambda mu: solve(mu, k)[1], bounds=around, method="bounded")
    mu = float(found.x if found.fun < losses[k][best] else capacities[best])
    coefficients = [*solve(mu, k)[0].tolist(), 0.0]
    return mu, int(k), coefficients[0], coefficients[1]

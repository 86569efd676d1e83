"""The average case (SFS): how long a request waits at an endpoint whose state cannot be seen.

Limited processor sharing: the endpoint shares a capacity of μ requests per second among at most k
of them, and the others wait in arrival order. With Poisson arrivals of rate α and exponential
work, the number in the system is that of M/M/1, (α/μ)^(k+1) / (1 - α/μ) of them wait in the mean,
and by Little's law each waits

    W = (α/μ)^k / (μ - α)      for α < μ; without bound otherwise: the endpoint is saturated.

W is the wait before service only. TTFT ≈ W + the request's own prefill.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from chimera_train.config import parse_settings
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json

__all__ = ["KIND", "SCHEMA", "ProcessorSharing", "mean_wait_ms"]

KIND = "lps"
SCHEMA = 1


def mean_wait_ms(
    arrival_rate_per_s: npt.ArrayLike, mu_per_s: npt.ArrayLike, k: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """W in ms of rates, capacities and k that broadcast; infinite where the rate reaches μ.

    Raises:
        ValueError: a rate is negative or not a number.
    """
    rate, mu = np.asarray(arrival_rate_per_s, dtype=float), np.asarray(mu_per_s, dtype=float)
    if not (rate >= 0).all():
        raise ValueError("an arrival rate is negative or not a number")
    saturated = rate >= mu
    load = np.where(saturated, 0.0, rate / mu)
    wait = 1000 * load ** np.asarray(k) / (mu * (1 - load))
    return np.where(saturated, np.inf, wait)


@dataclass(frozen=True, slots=True)
class ProcessorSharing:
    """Mean waits at one endpoint, by the rate at which requests arrive there.

    Attributes:
        mu_per_s: requests per second that the endpoint completes when it is never idle; above 0.
        k: requests that it serves at once; at least 1.
        prefill_ms: time to the first token of a request that does not wait, without its prompt.
        prefill_ms_per_token: what each prompt token adds to that.
        observed_per_s: lowest and highest rate the model was fitted on without saturation; beyond
            them it extrapolates.

    Raises:
        ValueError: a value is out of its range or not finite.
    """

    mu_per_s: float
    k: int
    prefill_ms: float
    prefill_ms_per_token: float
    observed_per_s: tuple[float, float]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu_per_s) and self.mu_per_s > 0):
            raise ValueError(f"mu_per_s is {self.mu_per_s}, it must be finite and above 0")
        if self.k < 1:
            raise ValueError(f"k is {self.k}, it must be at least 1")
        for name in ("prefill_ms", "prefill_ms_per_token"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}, it must be finite and not negative")
        low, high = self.observed_per_s
        if not 0 < low <= high < self.mu_per_s:
            raise ValueError(
                f"observed_per_s is {low} to {high}, it must lie between 0 and mu_per_s,"
                f" {self.mu_per_s}"
            )

    @classmethod
    def load(cls, path: Path) -> ProcessorSharing:
        """Read a file written by ``chimera-train calibrate-endpoint``.

        Raises:
            DataError: the file is missing, malformed, of another kind or of a newer schema, or a
                value is out of its range.
        """
        document = read_json(path)
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise DataError(f"{path} is not a file of 'chimera-train calibrate-endpoint'.")
        schema = document.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise DataError(
                f"{path} has schema {schema}, newer than the supported {SCHEMA}:"
                " update chimera-train."
            )
        try:
            return parse_settings(document, _File, str(path)).model()
        except ConfigError as error:  # nobody edits this file: it is damaged data
            raise DataError(str(error)) from error

    def document(self) -> Mapping[str, Any]:
        """The content of a file that :meth:`load` reads; other keys may be added to it."""
        return {
            "schema": SCHEMA,
            "kind": KIND,
            "mu_per_s": self.mu_per_s,
            "k": self.k,
            "prefill_ms": self.prefill_ms,
            "prefill_ms_per_token": self.prefill_ms_per_token,
            "observed_per_s": list(self.observed_per_s),
        }

    @overload
    def wait_ms(self, arrival_rate_per_s: float) -> float: ...
    @overload
    def wait_ms(self, arrival_rate_per_s: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
    def wait_ms(self, arrival_rate_per_s: Any) -> Any:
        """Mean wait before service in ms at a rate, or at each of n (shape (n,)).

        Infinite where the endpoint is saturated.

        Raises:
            ValueError: a rate is negative or not a number.
        """
        wait = mean_wait_ms(arrival_rate_per_s, self.mu_per_s, self.k)
        return wait if wait.ndim else float(wait)

    @overload
    def ttft_ms(self, arrival_rate_per_s: float, prompt_tokens: float) -> float: ...
    @overload
    def ttft_ms(
        self, arrival_rate_per_s: float, prompt_tokens: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]: ...
    def ttft_ms(self, arrival_rate_per_s: float, prompt_tokens: Any) -> Any:
        """Mean TTFT in ms at a rate, of one prompt length or of n (shape (n,))."""
        own = self.prefill_ms + self.prefill_ms_per_token * prompt_tokens
        return self.wait_ms(arrival_rate_per_s) + own

    def is_saturated(self, arrival_rate_per_s: float) -> bool:
        """Whether requests arrive at least as fast as the endpoint can complete them."""
        return arrival_rate_per_s >= self.mu_per_s


class _File(BaseModel):
    # Other keys carry the quality of the fit and its provenance; nothing here depends on them.
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = Field(alias="schema")
    mu_per_s: FiniteFloat
    k: int
    prefill_ms: FiniteFloat
    prefill_ms_per_token: FiniteFloat
    observed_per_s: tuple[FiniteFloat, FiniteFloat]

    @model_validator(mode="after")
    def _in_range(self) -> _File:
        self.model()  # its ValueError becomes the file's
        return self

    def model(self) -> ProcessorSharing:
        return ProcessorSharing(
            mu_per_s=self.mu_per_s,
            k=self.k,
            prefill_ms=self.prefill_ms,
            prefill_ms_per_token=self.prefill_ms_per_token,
            observed_per_s=self.observed_per_s,
        )

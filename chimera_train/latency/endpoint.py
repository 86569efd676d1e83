"""From observed requests to the coefficient file of an endpoint whose state cannot be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.latency.loads import Load, Loads
from chimera_train.latency.lps import Waits, ms_per_token
from chimera_train.predict.lps import ProcessorSharing

__all__ = ["calibrate_endpoint"]


def calibrate_endpoint(observed: Loads, *, seed: int) -> Mapping[str, Any]:
    """Fit μ and k and judge them: the content of the coefficient file.

    Args:
        observed: requests of one endpoint at 3 or more arrival rates.
        seed: of the intervals.

    Returns:
        What ``ProcessorSharing.load`` reads, and ``ci`` (95 %, of mu_per_s and k), ``mape`` of the
        loads' mean TTFT in percent but for the lowest (``fitted``; ``held_out``: each predicted by
        a fit to the others; None without any), ``knee`` (``Waits.knee``: requests, and the share
        it is wrong about), ``loads`` (measured beside predicted), and ``fitted_on``.

    Raises:
        DataError: the lowest load is saturated; no load waits; or the waits do not grow with the
            rate as the model has it, or contradict that the endpoint kept up with the highest.
    """
    loads, source = observed.loads, observed.source
    if loads[0].saturated:
        raise DataError(
            f"{source}: even the lowest rate, {loads[0].rate_per_s:.4g}/s, saturates the endpoint:"
            " observe lower ones, down to where nothing waits."
        )
    waits = Waits(loads, ms_per_token(loads[0]), source)
    model = waits.fit()
    knee, wrong = waits.knee()
    rows = [_row(load, model, waits, lowest=load is loads[0]) for load in loads]
    return {
        **model.document(),
        "ci": waits.intervals(model, np.random.default_rng(seed)),
        "mape": {name: _mean_of(rows, f"{name}_error_percent") for name in ("fitted", "held_out")},
        "knee": {"requests": knee, "wrong": wrong},
        "loads": rows,
        "fitted_on": {
            "requests": sum(len(load.ttft_ms) for load in loads),
            "source": str(source),
            "sha256": sha256(source),
        },
    }


def _row(load: Load, model: ProcessorSharing, waits: Waits, *, lowest: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rate_per_s": load.rate_per_s,
        "requests": len(load.ttft_ms),
        "saturated": load.saturated,
        "throughput_per_s": load.throughput_per_s,
        "concurrency": None,
        "ttft_ms": float(load.ttft_ms.mean()),
        "predicted_ttft_ms": None,
        "fitted_error_percent": None,
        "held_out_error_percent": None,
    }
    # Neither TTFT nor the number of requests has a mean while both grow.
    if not load.saturated:
        # Little's law: the mean number of requests in the endpoint.
        row["concurrency"] = load.rate_per_s * float(load.e2e_ms.mean()) / 1000
        row["predicted_ttft_ms"] = _predicted_ms(model, load)
        if not lowest:  # which the others are compared with: it fits by construction
            row["fitted_error_percent"] = _error_percent(model, load)
        others = None if lowest else waits.fit_without(load)
        if others is not None:
            row["held_out_error_percent"] = _error_percent(others, load)
    return row


def _predicted_ms(model: ProcessorSharing, load: Load) -> float:
    return model.ttft_ms(load.rate_per_s, float(load.prompt_tokens.mean()))


def _error_percent(model: ProcessorSharing, load: Load) -> float:
    measured = float(load.ttft_ms.mean())
    return 100 * (_predicted_ms(model, load) - measured) / measured


def _mean_of(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [abs(row[name]) for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else None

"""How well the step time of each regime is known: batches of the grid, measured again and again."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import exp, log, sqrt
from typing import Any

import numpy as np
from scipy.stats import t

from chimera_train.collect.step_log import regime_of
from chimera_train.collect.step_plan import REGIME_OF, Cell, Kind

__all__ = ["Precision"]

_CONFIDENCE = 0.95
# Of a normal distribution, per median absolute deviation.
_SIGMA_PER_MAD = 1.4826

#: What makes two steps of two visits of a grid point the same batch; their decode contexts differ
#: by at most the few tokens that a visit decodes.
_BATCH = ("prefill_tokens", "decode_tokens", "n_prefill", "max_prefill_ctx")


class Precision:
    """The confidence interval of the time of a batch, by regime.

    A visit of a grid point gives one time for each batch that it ran: the median over its steps,
    which a stall does not reach. Visits are passes over the whole grid apart, so a machine that
    changes its pace for seconds or minutes differs between them. All batches of a regime are taken
    to vary by the same share σ, which is estimated from the deviations of the log times from their
    batch's mean, by the median of their magnitudes: a visit that stalled as a whole does not reach
    it either. The mean log time of k visits is then known to ±t·σ/√k.
    """

    def __init__(self) -> None:
        self._log_ms: dict[Kind, dict[tuple[Any, ...], list[float]]] = {
            kind: defaultdict(list) for kind in REGIME_OF
        }

    def add(self, cell: Cell, steps: Iterable[Mapping[str, Any]]) -> None:
        """Add a visit of ``cell``; steps of another regime than its own are passed over."""
        times = defaultdict(list)
        for step in steps:
            if regime_of(step) == REGIME_OF[cell.kind]:
                times[tuple(step[name] for name in _BATCH)].append(step["step_ms"])
        for batch, ms in times.items():
            self._log_ms[cell.kind][cell, *batch].append(log(np.median(ms)))

    def half_width_percent(self, kind: Kind) -> float | None:
        """Half of the 95 % confidence interval of the time of a batch of ``kind``, in % of it.

        It is that of the typical number of visits (root mean square over the batches). None before
        any batch was seen twice.
        """
        repeated = [np.array(times) for times in self._log_ms[kind].values() if len(times) > 1]
        if not repeated:
            return None
        deviations = [
            (times - times.mean()) * sqrt(len(times) / (len(times) - 1)) for times in repeated
        ]
        sigma = _SIGMA_PER_MAD * np.median(np.abs(np.concatenate(deviations)))
        freedom = sum(len(times) - 1 for times in repeated)
        error = sigma * sqrt(np.mean([1 / len(times) for times in repeated]))
        return 100 * (exp(t.ppf((1 + _CONFIDENCE) / 2, freedom) * error) - 1)

"""What the gateway exposes at ``/metrics``, in a registry of its own."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from chimera_train.runtime.dispatcher import Dispatcher
from chimera_train.runtime.programs import ProgramTable

__all__ = ["GatewayMetrics"]

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)


class GatewayMetrics:
    """Counters and histograms that the gateway feeds, and gauges read from its state."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        programs: ProgramTable,
        engines: Sequence[str],
        breaker_state: Callable[[int], float],
    ) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "chimera_requests", "Requests answered, by HTTP status.", ["status"],
            registry=self.registry,
        )  # fmt: skip
        self.engine_failures = Counter(
            "chimera_engine_failures", "Requests that an engine went away from.", ["engine"],
            registry=self.registry,
        )  # fmt: skip
        self.overhead = Histogram(
            "chimera_overhead_seconds", "Reading, predicting and deciding; not waiting.",
            buckets=_OVERHEAD_S, registry=self.registry,
        )  # fmt: skip
        self.queue = self._latency("queue", "Waiting for a slot at the engine.")
        self.ttft = self._latency("ttft", "Arrival to first token.")
        self.e2e = self._latency("e2e", "Arrival to the end of the response.")

        gauges: Sequence[tuple[str, str, Callable[[int], float]]] = (
            ("load_ms", "Predicted time of the tokens in flight.", dispatcher.engine_load_ms),
            ("queued_requests", "Requests waiting here for the engine.", dispatcher.queued),
            ("outstanding_requests", "Requests at the engine.", dispatcher.outstanding),
            ("engine_up", "1 while requests may be sent to the engine.", dispatcher.is_up),
            ("breaker_state", "0 closed, 1 half open: probed, 2 open: left alone.", breaker_state),
        )
        for name, what, value in gauges:
            gauge = Gauge(f"chimera_{name}", what, ["engine"], registry=self.registry)
            for index, engine in enumerate(engines):
                gauge.labels(engine).set_function(partial(value, index))
        programs_gauge = Gauge(
            "chimera_programs", "Programs that have not ended.", registry=self.registry
        )
        programs_gauge.set_function(programs.__len__)

    def _latency(self, name: str, what: str) -> Histogram:
        return Histogram(
            f"chimera_{name}_seconds", what, ["engine"],
            buckets=_LATENCY_S, registry=self.registry,
        )  # fmt: skip

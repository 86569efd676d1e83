"""Tables of latencies by batch and length: what their columns are called, and in which unit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["LAYOUTS", "Layout", "recognise"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a table in which a row is a batch of equal requests that start together.

    Attributes:
        prompt, output: tokens of each request; one column where the two are always equal.
        batch: number of requests.
        engine: columns that say which engine it was; those that the table lacks are passed over.
        ms: milliseconds in the unit of the times.
        total: time until the last request has completed.
        first: time until the prompts are computed.
        between: time from one output token to the next.
        throughput: tokens per second of the whole batch, prompts included.
    """

    prompt: str
    output: str
    batch: str
    engine: tuple[str, ...]
    ms: float
    total: str | None = None
    first: str | None = None
    between: str | None = None
    throughput: str | None = None

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that must be numbers above 0."""
        times = (self.total, self.first, self.between, self.throughput)
        return (self.prompt, self.output, self.batch, *(name for name in times if name))


_OWN = ("prompt_tokens", "output_tokens", "batch_size")
_OWN_ENGINE = ("model", "device", "framework", "tensor_parallel_size")

LAYOUTS = (
    # LLM-Inference-Bench of Argonne National Laboratory, results.csv.
    Layout(
        prompt="Input Output Length",
        output="Input Output Length",
        batch="Batch Size",
        engine=("Hardware", "Num of Hardware", "Framework", "Model"),
        ms=1000.0,
        total="Latency",
        throughput="Throughput",
    ),
    # Splitwise (Patel et al., ISCA 2024), perf_model.csv.
    Layout(
        prompt="prompt_size",
        output="token_size",
        batch="batch_size",
        engine=("model", "hardware", "tensor_parallel"),
        ms=1.0,
        total="e2e_time",
        first="prompt_time",
        between="token_time",
    ),
    # Anybody's, in the words and units of this project.
    Layout(*_OWN, engine=_OWN_ENGINE, ms=1.0, first="ttft_ms", between="tpot_ms"),
    Layout(*_OWN, engine=_OWN_ENGINE, ms=1.0, total="e2e_ms"),
)
"""The first whose columns a table has is taken."""


def recognise(columns: Collection[str]) -> Layout | None:
    """The layout of a table with these columns; None of an unknown one."""
    return next((layout for layout in LAYOUTS if set(layout.numbers) <= set(columns)), None)

"""What is recorded of an engine step, and the JSON-lines file it goes into.

The first line describes the engine; every other line is one step, an array in the order of
``COLUMNS``. The writer runs inside the engine's interpreter, which need not have this package's
dependencies: standard library only.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "COLUMNS", "FILE_VARIABLE", "BatchShape", "StepLog", "StepLogReader", "batch_shape",
    "read_step_log", "regime_of",
]  # fmt: skip

#: Names the file to an engine that is started with the tracing scheduler.
FILE_VARIABLE = "CHIMERA_STEPS_FILE"

# A step is milliseconds; writing one line at a time would still be cheap, but needless.
_BUFFERED_STEPS = 128


class BatchShape(NamedTuple):
    """The token batch of a step, as the trace table ``steps`` describes it."""

    prefill_tokens: int
    decode_tokens: int
    n_prefill: int
    n_seqs: int
    prefill_attn: int
    decode_ctx_tokens: int
    max_prefill_ctx: int
    max_decode_ctx: int


#: ``end_s`` is on the clock of ``time.monotonic``, which all processes of a machine share.
COLUMNS = ("step", *BatchShape._fields, "kv_blocks_used", "schedule_ms", "step_ms", "end_s")


def batch_shape(sequences: Iterable[tuple[int, int, int]]) -> BatchShape:
    """The shape of a batch of (tokens in this step, tokens computed before, prompt tokens).

    A sequence decodes when its prompt is computed and it has one token in the step; anything else
    is a prefill chunk, also where a preempted request computes its own output again. The context
    of a decoding sequence is what was computed before the step; ``max_prefill_ctx`` includes the
    chunk.
    """
    prefill_tokens = decode_tokens = n_prefill = 0
    prefill_attn = decode_ctx_tokens = max_prefill_ctx = max_decode_ctx = 0
    for tokens, computed, prompt_tokens in sequences:
        if tokens == 1 and computed >= prompt_tokens:
            decode_tokens += 1
            decode_ctx_tokens += computed
            if computed > max_decode_ctx:
                max_decode_ctx = computed
        else:
            n_prefill += 1
            prefill_tokens += tokens
            prefill_attn += tokens * computed + tokens * (tokens + 1) // 2
            if computed + tokens > max_prefill_ctx:
                max_prefill_ctx = computed + tokens
    return BatchShape(
        prefill_tokens,
        decode_tokens,
        n_prefill,
        n_prefill + decode_tokens,
        prefill_attn,
        decode_ctx_tokens,
        max_prefill_ctx,
        max_decode_ctx,
    )


class StepLog:
    """Appends steps to a file, some at a time."""

    def __init__(self, path: Path, engine: Mapping[str, Any]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._rows: list[tuple[float, ...]] = []
        self._steps = 0
        self._file.write(json.dumps({"engine": dict(engine), "columns": COLUMNS}) + "\n")
        self._file.flush()

    def add(
        self,
        shape: BatchShape,
        *,
        kv_blocks_used: int,
        schedule_ms: float,
        step_ms: float,
        end_s: float,
    ) -> None:
        """Record one finished step."""
        self._rows.append((self._steps, *shape, kv_blocks_used, schedule_ms, step_ms, end_s))
        self._steps += 1
        if len(self._rows) >= _BUFFERED_STEPS:
            self.flush()

    def flush(self) -> None:
        """Hand what was recorded to the operating system."""
        self._file.writelines(json.dumps(row) + "\n" for row in self._rows)
        self._rows.clear()
        self._file.flush()

    def close(self) -> None:
        """Write what was recorded and close the file."""
        self.flush()
        self._file.close()


class StepLogReader:
    """Reads a log while it is written.

    Attributes:
        engine: the description of the engine.

    Raises:
        ValueError: the file is not one that ``StepLog`` writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            header = json.loads(file.readline())
            self._position = file.tell()
        self.engine: dict[str, Any] = header["engine"]
        self._columns = header["columns"]

    def new_steps(self) -> list[dict[str, Any]]:
        """The steps since the last call; a last line that is not whole yet is left for the next."""
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines = [line for line in file if line.endswith(b"\n")]
        self._position += sum(map(len, lines))
        return [dict(zip(self._columns, json.loads(line), strict=True)) for line in lines]


def read_step_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The engine's description and its steps; a last line that was cut short is left out.

    Raises:
        ValueError: the file is not one that ``StepLog`` writes.
    """
    reader = StepLogReader(path)
    return reader.engine, reader.new_steps()


def regime_of(step: Mapping[str, Any]) -> str:
    """``decode_only``, ``prefill_only`` or ``mixed``."""
    if step["prefill_tokens"] == 0:
        return "decode_only"
    return "mixed" if step["decode_tokens"] else "prefill_only"

"""How well each kind of step-time model predicts an RTX 4090 on steps it has not seen.

    python benchmarks/calibration.py [--data DIR] [--json]

Held out are contexts, batch shapes, and, one after the other, every level of each axis of the
profile as a whole (prefill tokens, decoding sequences, and the context of both). DIR holds the
public data (``latency/llmservingsim``); by default CHIMERA_SHARED_DATA or ``../shared/data`` beside
the repository.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.latency.fit import REGIMES, axis_ranges, fit, predict
from chimera_train.latency.judge import context_folds, cross_validate, errors, shape_folds
from chimera_train.latency.steps import read_steps
from chimera_train.output import Output, table
from chimera_train.predict.step_terms import COUNTS, KINDS, compile_model, extrapolates

STEPS = "latency/llmservingsim/steps_rtx4090_llama31_8b.csv.gz"
MAX_CONTEXT = 4096


def held_out_folds(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Each kind's errors on contexts and on batch shapes not seen."""
    for name, folds in (("contexts", context_folds(frame)), ("shapes", shape_folds(frame))):
        for kind in KINDS:
            judged = errors(cross_validate(kind, frame, folds), frame)
            yield {"held_out": name, "model": kind, "steps": len(frame)} | judged


def held_out_levels(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Each kind's MAPE on a level of an axis that it saw nothing of; edges are marked."""
    prefill, decode = frame["prefill_tokens"], frame["decode_tokens"]
    computed = frame["prefill_attn"] / prefill.clip(lower=1) - (prefill + 1) / 2
    axes = {
        "prefill_tokens": prefill,
        "decode_tokens": decode,
        "prefill_ctx": computed.where(prefill > 0, -1).round(),
        "decode_ctx": (frame["decode_ctx_tokens"] / decode.clip(lower=1)).round(),
    }
    for axis, values in axes.items():
        levels = np.unique(values[values > 0])
        for level in levels:
            mine = values == level
            rest = frame[~mine]
            limits = compile_model({}, ranges=axis_ranges(rest))
            flagged = [extrapolates(limits, *row) for row in frame.loc[mine, list(COUNTS)].values]
            row: dict[str, Any] = {"axis": axis, "level": float(level), "steps": int(mine.sum())}
            row["edge"] = bool(level in (levels[0], levels[-1]))
            row["extrapolated"] = float(np.mean(flagged))
            for kind in ("eq9-plus", "table"):
                predicted = predict(fit(kind, rest), frame[mine])
                row[kind] = errors(predicted, frame[mine])["mape"]["overall"]
            yield row


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("CHIMERA_SHARED_DATA", beside))
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    frame = read_steps(arguments.data / STEPS, max_context=MAX_CONTEXT).frame
    folds, levels = list(held_out_folds(frame)), list(held_out_levels(frame))
    names = ("overall", *REGIMES)
    columns = ("axis", "level", "steps", "edge", "extrapolated", "eq9-plus", "table")
    Output(as_json=arguments.json).result(
        {"results": folds, "levels": levels},
        table(
            ["held out", "model", *names, "bias"],
            [
                [row["held_out"], row["model"], *(row["mape"][n] for n in names), row["bias"]]
                for row in folds
            ],
        ),
        "",
        table(columns, [[row[name] for name in columns] for row in levels]),
    )


if __name__ == "__main__":
    main()

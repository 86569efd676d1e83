"""How well step-time models fitted on published latencies predict a length they have not seen.

    python benchmarks/published_latency.py [--data DIR] [--json]

For every engine of a table (hardware, framework, model) each length is held out in turn; what the
default model and tokens alone, fitted on the other lengths, predict of it is compared with what was
published. The size of the KV cache, where the times show it, is fitted on the other lengths too.
DIR holds the public data (``latency/argonne``: whole runs, outputs as long as prompts;
``latency/splitwise``: prompt and token times); by default CHIMERA_SHARED_DATA or
``../shared/data`` beside the repository.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.errors import DataError
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.fit import Fit, predict
from chimera_train.latency.published.runs import Limits
from chimera_train.latency.published.table import Runs, batch_rows, fitted_limits, read_runs
from chimera_train.latency.steps import check_steps
from chimera_train.output import Output, table

TABLES = {
    "latency/argonne/results.csv": ("Framework", "Num of Hardware", "Model"),
    "latency/splitwise/perf_model.csv": ("hardware", "tensor_parallel", "model"),
}
# The kind of model, and whether the size of the KV cache is fitted.
VARIANTS = {"default": (None, True), "tokens": ("tokens", True), "eq9, no cache": ("eq9", False)}


def held_out_lengths(source: Path, runs: Runs) -> dict[str, Any]:
    """MAPE in % over all rows of an engine, each predicted without those of its length."""
    lengths = runs.frame[runs.layout.prompt]
    if lengths.nunique() < 3:
        raise DataError(f"{source} has fewer than 3 lengths.")
    errors: dict[str, list[float]] = {name: [] for name in VARIANTS}
    chosen, refused = [], ""
    for length in np.unique(lengths):
        seen, unseen = runs.where(lengths != length), runs.where(lengths == length)
        try:
            for name, (kind, is_cache_fitted) in VARIANTS.items():
                limits = fitted_limits(seen) if is_cache_fitted else Limits()
                document, absolute = judge(source, seen, unseen, kind, limits)
                errors[name] += absolute
                if kind is None:
                    chosen.append(document["kind"])
        except DataError as error:  # the other lengths do not tell the costs apart
            refused = str(error)
    if not chosen:
        raise DataError(refused)
    counts = {"rows": len(runs.frame), "lengths": len(chosen)}
    mapes = {name: float(np.mean(values)) for name, values in errors.items()}
    return {**counts, **mapes, "chosen": sorted(set(chosen))}


def judge(
    source: Path, seen: Runs, unseen: Runs, kind: str | None, limits: Limits
) -> tuple[Mapping[str, Any], list[float]]:
    """The coefficient file fitted on ``seen``, and its absolute errors in % on ``unseen``."""
    fitted_on, asked = (
        check_steps(pd.DataFrame(batch_rows(runs, limits)), source) for runs in (seen, unseen)
    )
    document = calibrate(fitted_on, kind=kind, engine=None).document
    predicted = predict(_fit(document), asked.frame)
    return document, (100 * np.abs(predicted / asked.frame["step_ms"] - 1)).tolist()


def _fit(document: Any) -> Fit:
    points = document["table"]
    terms = {term["name"]: term["coefficient"] for term in document["terms"]}
    table = (tuple(points["tokens"]), tuple(points["ms"])) if points else ((), ())
    return Fit(terms, table, 0.0, 0.0)


def engines(source: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The result of every engine of a table, or why it has none."""
    known = pd.read_csv(source, dtype=str)[list(columns)].drop_duplicates().sort_values([*columns])
    for values in known.itertuples(index=False):
        where = dict(zip(columns, values, strict=True))
        row: dict[str, Any] = {"table": source.parent.name, "engine": " ".join(values)}
        try:
            yield row | held_out_lengths(source, read_runs(source, where))
        except DataError as error:
            yield row | {"refused": str(error).removeprefix(f"{source} ")}


def medians(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median over engines, of each table and of each first word of an engine's name."""
    frame = pd.DataFrame([row for row in rows if "refused" not in row])
    groups = pd.concat(
        [frame.assign(of="all"), frame.assign(of=frame["engine"].str.split().str[0])]
    ).groupby(["table", "of"])
    result = groups[list(VARIANTS)].median().assign(engines=groups.size())
    return result.reset_index().to_dict("records")


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--data", type=Path, default=Path(os.environ.get("CHIMERA_SHARED_DATA", beside))
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    missing = [name for name in TABLES if not (arguments.data / name).is_file()]
    if missing:
        parser.error(f"{arguments.data} lacks {', '.join(missing)}: give --data")
    rows = [
        row for name, columns in TABLES.items() for row in engines(arguments.data / name, columns)
    ]
    summary = medians(rows)
    columns = ("table", "engine", "rows", "lengths", *VARIANTS, "chosen", "refused")
    Output(as_json=arguments.json).result(
        {"medians": summary, "engines": rows},
        table(columns, [[row.get(name) for name in columns] for row in rows]),
        "",
        table(list(summary[0]), [list(row.values()) for row in summary]),
    )


if __name__ == "__main__":
    main()

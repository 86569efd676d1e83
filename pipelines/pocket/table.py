"""Accuracy and mean output length by model and number of steps, from trace tables.

    python pipelines/pocket/table.py --traces data/traces/math [--json]

Reads ``programs.parquet`` and ``questions.parquet``. Failed programs (no score) are counted apart.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

Cells = dict[str, dict[str, dict[str, int | float | None]]]
PROGRAM_COLUMNS = ["program_id", "question_id", "model", "score", "total_output_tokens"]


def read_cells(traces: Path) -> Cells:
    """``cells[model][steps]`` with programs, failed, accuracy and output_tokens; "all" sums up.

    Accuracy (0..1) and output tokens are means over the programs that have a score, None without.
    """
    questions = pq.read_table(traces / "questions.parquet", columns=["question_id", "metadata"])
    steps_of = {
        row["question_id"]: str(json.loads(row["metadata"] or "{}").get("steps", "?"))
        for row in questions.to_pylist()
    }
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in pq.read_table(traces / "programs.parquet", columns=PROGRAM_COLUMNS).to_pylist():
        for steps in (steps_of.get(row["question_id"], "?"), "all"):
            rows[row["model"], steps].append(row)
    cells: Cells = {}
    for (model, steps), found in sorted(rows.items()):
        scored = [row for row in found if row["score"] is not None]
        count = len(scored)
        cells.setdefault(model, {})[steps] = {
            "programs": len(found),
            "failed": len(found) - len(scored),
            "accuracy": sum(row["score"] for row in scored) / count if count else None,
            "output_tokens": (
                sum(row["total_output_tokens"] or 0 for row in scored) / count if count else None
            ),
        }
    return cells


def text(cell: dict[str, int | float | None] | None) -> str:
    """Accuracy in percent and mean output tokens, or a dash when nothing was scored."""
    if cell is None or cell["accuracy"] is None:
        return "-"
    return f"{100 * cell['accuracy']:.0f} % / {cell['output_tokens']:.0f}"


def markdown(cells: Cells) -> str:
    """One row per model; each cell is accuracy in percent and mean output tokens."""
    columns = sorted({steps for row in cells.values() for steps in row})
    lines = [
        "| model | " + " | ".join(c if c == "all" else f"{c} steps" for c in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for model, row in cells.items():
        texts = [text(row.get(column)) for column in columns]
        lines.append(f"| {model} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy and output length by model and steps.")
    parser.add_argument("--traces", required=True, type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cells = read_cells(arguments.traces)
    print(json.dumps({"cells": cells}) if arguments.json else markdown(cells))


if __name__ == "__main__":
    main()

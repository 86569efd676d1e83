"""What lengths are predicted with when a data set holds no texts.

    python benchmarks/length_privacy.py [--data DIR] [--json]

Kendall's distance of questions that were not fitted on, as in ``length_quality``, of one pooled
forest: with texts; with what ``--no-text`` keeps, counts and keyed hashes of words and pairs of
words; and with token counts, workflow and stage alone. The rows are those of ``length_data``:
MapCoder, and MMLU-Pro of the two Llama-3.1 models.
"""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from length_data import default_data, load, mmlu_pro, rows_of, run
from length_quality import distances
from prepare import LLAMA

from chimera_train.hashed_text import HashKey
from chimera_train.length.estimators import fit_estimators
from chimera_train.length.evaluate import predict_unseen
from chimera_train.length.rows import with_hashed_texts
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output, table

KEY = HashKey(bytes(range(32)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--jobs", type=int, default=1, help="threads that fit trees")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    data_sets = {
        "mapcoder": (load(arguments.data, "mapcoder"), False),
        "mmlu-pro": (rows_of(mmlu_pro(arguments.data, LLAMA)), True),
    }
    figures = {
        name: compare(name, rows, arguments.jobs, output, each_model=each_model)
        for name, (rows, each_model) in data_sets.items()
    }
    kinds = next(iter(figures.values()))
    output.result(
        figures,
        table(
            ["Kendall distance", *figures],
            [[kind, *(_shown(of[kind]) for of in figures.values())] for kind in kinds],
        ),
    )


def compare(
    name: str, rows: pd.DataFrame, jobs: int, output: Output, *, each_model: bool
) -> dict[str, Any]:
    """The distances of a data set by what is known of its texts."""
    settings = LengthSettings(n_jobs=jobs)
    found = {}
    for kind, of, chosen, key in (
        ("texts", rows, settings, None),
        ("hashed", with_hashed_texts(rows, KEY), settings, KEY),
        ("token counts", rows, settings.model_copy(update={"sketch_components": 0}), None),
    ):
        started = time.process_time()
        judged = predict_unseen(of, chosen, output, partial(fit_estimators, key=key))
        cpu_s = time.process_time() - started
        all_figures = distances(judged, "predicted", each_model=each_model)
        found[kind] = {"overall": all_figures["overall"], "ci": all_figures["ci"], "cpu_s": cpu_s}
        output.info(f"{name}, {kind}: {all_figures['overall']:.4f} in {cpu_s:.0f} s of CPU")
    return found


def _shown(of: dict[str, Any]) -> str:
    low, high = of["ci"]
    return f"{of['overall']:.4f} ({low:.4f} to {high:.4f})"


if __name__ == "__main__":
    run(main)

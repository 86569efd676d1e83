"""How well the forests order real multi-stage programs: MathCoder on GSM8K, four models.

    python benchmarks/length_quality.py [--data DIR] [--json]

DIR holds the public data (``gsm8k``); by default CHIMERA_SHARED_DATA or ``../shared/data`` beside
the repository. A stage is what a model wrote up to the next execution of its code; its prompt is
the question and everything before. The stages' texts are not in the data, so the question's stands
for them, and its words and punctuation marks are counted as its tokens.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from chimera_train.length.evaluate import cross_validate
from chimera_train.length.forests import FittedLength, fit_forests
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output, table
from chimera_train.traces.schemas import SCHEMAS
from chimera_train.traces.split import HOLDOUT_FOLD
from chimera_train.traces.store import Traces

sys.path.insert(0, str(Path(__file__).parents[1] / "pipelines" / "public"))
from prepare import GSM8K, GSM8K_STAGES, llm_calls, read_lines, word_tokens
from script import default_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)

    rows = stage_rows(mathcoder(arguments.data))
    settings = LengthSettings()
    started = time.process_time()
    figures = cross_validate(rows, settings, output)
    figures["cross_validation_cpu_s"] = time.process_time() - started
    figures["stages"] = len(rows)
    fitted = fit_forests(rows[rows["fold"] != HOLDOUT_FOLD], settings)
    figures |= run_time(fitted, rows[rows["fold"] == HOLDOUT_FOLD])

    distance = figures["kendall_distance"]
    output.result(
        figures,
        f"{figures['n_programs']} programs, {figures['stages']} stages; Kendall-τ distance",
        table(
            ["model", "forest", *figures["baselines"]],
            [["all", distance["overall"], *figures["baselines"].values()]]
            + [
                [model, distance["per_model"][model], *baselines.values()]
                for model, baselines in figures["baselines_per_model"].items()
            ],
        ),
        "95 % interval {:.4g} to {:.4g}".format(*distance["ci"]),
        "coverage " + ", ".join(f"{q}: {c['overall']:.3f}" for q, c in figures["coverage"].items()),
        "processor time a row: {row_us[1]:.0f} µs alone, {row_us[64]:.0f} µs in batches of 64, of"
        " which {features_us:.0f} µs for the features".format(**figures),
        "size of a model's forest: {mib_per_model:.2f} MiB on disk, {library_mib_per_model:.0f} MiB"
        " in quantile-forest".format(**figures),
    )


def mathcoder(data: Path) -> Traces:
    """The public data as trace tables."""
    questions = {row["idx"]: row["question"] for row in read_lines(data / GSM8K)}
    programs: list[dict[str, Any]] = []
    stages: list[dict[str, Any]] = []
    for row in read_lines(data / GSM8K_STAGES):
        program = f"{row['model']}/{row['idx']}"
        text = questions[row["idx"]]
        question_tokens = word_tokens(text)
        calls = list(llm_calls(row["stages"], question_tokens))
        programs.append(
            {
                "program_id": program,
                "task": "gsm8k",
                "question_id": f"gsm8k-{row['idx']}",
                "workflow": "mathcoder",
                "model": row["model"],
                "sample": 0,
                "n_stages": len(calls),
                "total_output_tokens": sum(output for _, output in calls),
            }
        )
        stages += [
            {
                "program_id": program,
                "stage_index": index,
                "stage": f"step{index + 1}",
                "prompt_tokens": prompt,
                "user_tokens": question_tokens,
                "output_tokens": output,
                "attempt": 1,
                "user_text": text,
            }
            for index, (prompt, output) in enumerate(calls)
        ]
    texts = [
        {"question_id": f"gsm8k-{index}", "task": "gsm8k", "text": text}
        for index, text in questions.items()
    ]
    return Traces(frame("programs", programs), frame("stages", stages), frame("questions", texts))


def frame(name: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=SCHEMAS[name].names)


def run_time(fitted: FittedLength, rows: pd.DataFrame) -> dict[str, Any]:
    """Median processor time of a row (features and forest) and the size of a model's forest."""
    predictor = fitted.predictor
    requests = stage_requests(rows)
    row_us = {}
    for batch in (1, 64):
        times = []
        for start in range(0, 640, batch):
            for model in predictor.models:
                started = time.process_time()
                predictor.predict(model, requests[start : start + batch])
                times.append((time.process_time() - started) / batch)
        row_us[batch] = 1e6 * float(np.median(times))
    started = time.process_time()
    predictor.features.rows(requests)
    features_us = 1e6 * (time.process_time() - started) / len(requests)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "forest.npz")
        on_disk = []
        for forest in predictor.forests.values():
            forest.save(path)
            on_disk.append(path.stat().st_size)
    in_library = [np.asarray(f.forest_.y_train_leaves).nbytes for f in fitted.forests.values()]
    return {
        "row_us": row_us,
        "features_us": features_us,
        "mib_per_model": float(np.mean(on_disk)) / 2**20,
        "library_mib_per_model": float(np.mean(in_library)) / 2**20,
    }


if __name__ == "__main__":
    main()

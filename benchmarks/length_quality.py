"""How well lengths of real programs are ordered and bracketed, beside what needs no fitting.

    python benchmarks/length_quality.py [--data DIR] [--encoder DIR] [--only NAME] [--json]

``--data`` is the folder of the public data, by default CHIMERA_SHARED_DATA or ``../shared/data``
beside the repository; ``length_data`` tells what the rows of each data set are. ``--encoder`` is a
sentence encoder, with whose sketch of the texts the pooled estimators are fitted once more.

The distance is Kendall's, (1 − τ_b)/2, of questions that were not fitted on: five folds by the
question's text, mean over the folds. All models' rows are ordered together in MathCoder and
MapCoder; in MMLU-Pro and GSM8K, where every model answers every question, each model's are, and the
mean over the models is shown. The 95 % interval is over resampled programs. Within a cell, that is
a workflow, stage and model, ids cannot help: the mean over the cells of each fold.

Coverage is the share of lengths from the predicted 10 to the 90 % quantile, both included. What
lies at one of them is shown too: where a few lengths are common, it makes the coverage exceed 0.8.

In MMLU-Pro, three whole categories at a time are left out of training, and so is the holdout fold
of the others. Outside is the share of their rows that the predictor takes for unlike its training
data.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from length_data import DATA_SETS, LEFT_OUT, default_data, load, run
from rich.table import Table

from chimera_train.length.estimators import fit_estimators
from chimera_train.length.evaluate import judged_rows, predict_unseen
from chimera_train.length.fit import open_embedder
from chimera_train.length.judge import CELL
from chimera_train.length.metrics import (
    cell_distance,
    fold_distance,
    resampled_interval,
    split_by,
)
from chimera_train.length.rows import stage_requests
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output, table
from chimera_train.traces.split import HOLDOUT_FOLD

# Name in the tables → what a row is ordered by without fitting.
BASELINES = {"prompt length": "prompt_length", "cell median": "stage_median"}
ESTIMATORS: Mapping[str, dict[str, Any]] = {
    "forest per model": {"per_model": True},
    "pooled forest": {"per_model": False},
    "boosted per model": {"estimator": "boosted", "per_model": True},
    "pooled boosted": {"estimator": "boosted", "per_model": False},
}
EACH_MODEL = ("mmlu-pro", "gsm8k")
SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--encoder", help="directory, or hub id, of a sentence encoder")
    parser.add_argument("--only", choices=DATA_SETS, help="one data set instead of all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)

    data_sets, left_out = {}, {}
    for name in [arguments.only] if arguments.only else DATA_SETS:
        rows = load(arguments.data, name)
        data_sets[name] = compare(name, rows, candidates(arguments.encoder), output)
        if name == "mmlu-pro":
            left_out = {", ".join(some): without(some, rows, output) for some in LEFT_OUT}
    values = {"data_sets": data_sets, "left_out": left_out}
    output.result(values, *report(data_sets, left_out))


def candidates(encoder: str | None) -> dict[str, LengthSettings]:
    """What is compared: each estimator, and the pooled with the encoder's sketch, if any."""
    found = {name: LengthSettings(**chosen) for name, chosen in ESTIMATORS.items()}
    if encoder is not None:
        sketch = {"sketch": "encoder", "encoder": encoder}
        found |= {
            f"{name}, encoder": LengthSettings(**chosen, **sketch)
            for name, chosen in ESTIMATORS.items()
            if not chosen["per_model"]
        }
    return found


def compare(
    name: str, rows: pd.DataFrame, compared: Mapping[str, LengthSettings], output: Output
) -> dict[str, Any]:
    """The figures of a data set: distances of every order, coverage and cost of every estimator."""
    each_model = name in EACH_MODEL
    orders: dict[str, Any] = {}
    estimators: dict[str, Any] = {}
    *_, last = compared.values()  # with the encoder, if there is one
    with open_embedder(rows, last, output) as embedder:
        for candidate, settings in compared.items():
            fit = fit_estimators
            if settings.encoder is not None:
                fit = partial(fit_estimators, embedder=embedder)
            started = time.process_time()
            judged = predict_unseen(rows, settings, output, fit)
            cpu_s = time.process_time() - started
            if not orders:
                orders = {
                    baseline: distances(judged, column, each_model=each_model)
                    for baseline, column in BASELINES.items()
                }
            orders[candidate] = distances(judged, "predicted", each_model=each_model)
            estimators[candidate] = {**interval(judged), "cross_validation_cpu_s": cpu_s}
            overall = orders[candidate]["overall"]
            output.info(f"{name}, {candidate}: distance {overall:.4f} in {cpu_s:.0f} s of CPU")
    return {
        "programs": int(rows["program_id"].nunique()),
        "questions": int(rows["question_id"].nunique()),
        "rows": len(rows),
        "kendall_distance": orders,
        "interval": estimators,
    }


def distances(judged: pd.DataFrame, column: str, *, each_model: bool) -> dict[str, Any]:
    """The distances of ordering judged rows by ``column``.

    ``overall`` with its interval ``ci``, ``per_model`` and ``within_cell``. Overall is the mean of
    ``per_model`` if ``each_model``, else that of all rows together.
    """
    truth = judged["target_tokens"].to_numpy(np.float64)
    predicted = judged[column].to_numpy(np.float64)
    folds = judged["fold"].to_numpy(np.int64)
    models = judged.groupby("model").ngroup().to_numpy(np.int64)
    ordered_together = models if each_model else np.zeros_like(models)

    def overall(drawn: np.ndarray) -> float:
        groups = [drawn[own] for own in split_by(ordered_together[drawn])]
        return float(np.mean([of(own) for own in groups]))

    def of(own: np.ndarray) -> float:
        return fold_distance(truth[own], predicted[own], folds[own])

    rng = np.random.default_rng(SEED)
    cells = judged.groupby([*CELL, "fold"]).ngroup().to_numpy(np.int64)
    return {
        "overall": overall(np.arange(len(judged))),
        "ci": list(resampled_interval(overall, folds, judged["program_id"], rng)),
        "per_model": {
            model: of(own) for model, own in sorted(judged.groupby("model").indices.items())
        },
        "within_cell": cell_distance(truth, predicted, cells),
    }


def interval(judged: pd.DataFrame) -> dict[str, float]:
    """How often the predicted 80 % interval holds, and where it fails."""
    length, low, high = (judged[name] for name in ("target_tokens", "0.1", "0.9"))
    shares = {
        "coverage": length.between(low, high),
        "at_an_end": length.eq(low) | length.eq(high),
        "below": length < low,
        "above": length > high,
    }
    return {name: float(share.mean()) for name, share in shares.items()}


def without(categories: Sequence[str], rows: pd.DataFrame, output: Output) -> dict[str, Any]:
    """The figures of ``categories``, of which no question was fitted on."""
    settings = LengthSettings()
    unseen = rows[rows["category"].isin(categories)]
    # A few texts are in more than one category.
    is_other = ~rows["question_id"].isin(unseen["question_id"])
    training = rows[is_other & (rows["fold"] != HOLDOUT_FOLD)]
    predictor = fit_estimators(training, settings).predictor
    # One predictor makes all predictions, so that they need not be compared fold by fold.
    judged = judged_rows(unseen, training, predictor, SEED).assign(fold=0)
    outside = [
        predictor.predict_with_source(str(model), stage_requests(own)).outside
        for model, own in unseen.groupby("model")
    ]
    columns = {"prompt length": "prompt_length", "forest": "predicted"}
    figures = {
        "rows": len(judged),
        "kendall_distance": {
            order: distances(judged, column, each_model=True) for order, column in columns.items()
        },
        "interval": interval(judged),
        "outside": float((np.concatenate(outside) > 0).mean()),
    }
    output.info(f"mmlu-pro without {', '.join(categories)}: done")
    return figures


def report(data_sets: Mapping[str, Any], left_out: Mapping[str, Any]) -> Iterator[Any]:
    """The figures as tables."""
    for name, of in data_sets.items():
        yield f"{name}: {of['programs']} programs, {of['rows']} rows, {of['questions']} questions"
    distances_of = {name: of["kendall_distance"] for name, of in data_sets.items()}
    orders = next(iter(distances_of.values()))

    def by_data_set(orders: Iterable[str], cell: Callable[[str, str], Any]) -> Table:
        rows = [[order, *(cell(name, order) for name in data_sets)] for order in orders]
        return table(["", *data_sets], rows)

    yield "\nKendall distance (95 % interval)"
    yield by_data_set(orders, lambda name, order: _with_ci(distances_of[name][order]))
    yield "\nKendall distance within a cell"
    yield by_data_set(orders, lambda name, order: distances_of[name][order]["within_cell"])
    yield "\nCoverage of the 80 % interval (of which at one of its ends)"
    yield by_data_set(
        [order for order in orders if order not in BASELINES],
        lambda name, order: _coverage(data_sets[name]["interval"][order]),
    )
    yield "\nKendall distance of each model"
    per_model = [
        [name, model, *(of[order]["per_model"][model] for order in orders)]
        for name, of in distances_of.items()
        for model in of["pooled forest"]["per_model"]
    ]
    yield table(["data", "model", *orders], per_model)
    if left_out:
        yield "\nMMLU-Pro, categories left out of training"
        columns = ["left out", "rows", "prompt length", "forest", "coverage (at an end)", "outside"]
        rows = [
            [
                name,
                of["rows"],
                *map(_with_ci, of["kendall_distance"].values()),
                _coverage(of["interval"]),
                of["outside"],
            ]
            for name, of in left_out.items()
        ]
        yield table(columns, rows)


def _with_ci(distance: Mapping[str, Any]) -> str:
    low, high = distance["ci"]
    return f"{distance['overall']:.4f} ({low:.4f} to {high:.4f})"


def _coverage(of: Mapping[str, float]) -> str:
    return f"{of['coverage']:.3f} ({of['at_an_end']:.3f})"


if __name__ == "__main__":
    run(main)

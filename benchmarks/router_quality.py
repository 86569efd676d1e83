"""How well routers tell which model solves a question, and what choosing by them gains.

    python benchmarks/router_quality.py [--data DIR] [--encoder DIR] [--only NAME] [--json]

``--data`` is the folder of the public data, by default CHIMERA_SHARED_DATA or ``../shared/data``
beside the repository; ``router_data`` tells what the outcomes of each data set are, and what a
question costs. ``--encoder`` is a sentence encoder: a logistic regression on its embeddings, which
stay as they are, is compared too, though no kind of router is made of it.

Five folds by question, near-duplicates together. Each is predicted by routers that were fitted on
three others and calibrated on the next one. ``auto`` is what ``fit router --kind auto`` would keep
in each fold, by the routing gain on its validation questions. Macro mAP and routing gain are means
over the folds, with 95 % intervals over questions, which are resampled within their folds;
differences are paired. Average precision by model, calibration error and the gain of choosing
between two models are of the predictions of all folds together.

In MMLU-Pro, three whole categories at a time are also left out of training, and predicted.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from length_data import LEFT_OUT, default_data, run
from router_data import ROUTER_DATA_SETS, load_outcomes
from sklearn.linear_model import LogisticRegression

from chimera_train.output import Output, table
from chimera_train.predict.encoder import Embedder
from chimera_train.predict.router_scorers import log_odds
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.choose import choose
from chimera_train.router.gain import pair_gains, resampled_gain
from chimera_train.router.judge import judge
from chimera_train.router.kinds import calibrated, fit_kinds, term_space
from chimera_train.router.labels import RouterData, grouped_folds, solved_shares
from chimera_train.router.metrics import (
    average_precision,
    calibration_error,
    interval,
    resampled_map,
    resampled_precision,
    resamples,
)
from chimera_train.router.outcomes import outcomes, prior_rates
from chimera_train.router.settings import RouterSettings
from chimera_train.traces.split import N_FOLDS

AUTO = "auto"
EMBEDDINGS = "encoder + logreg"
ENCODER_TOKENS = 256
RESAMPLES = 500

Probabilities = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--encoder", help="directory, or hub id, of a sentence encoder")
    parser.add_argument("--only", choices=ROUTER_DATA_SETS, help="one data set instead of all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)

    data_sets, left_out = {}, {}
    for name in [arguments.only] if arguments.only else ROUTER_DATA_SETS:
        data = load_outcomes(arguments.data, name)
        with opened(arguments.encoder, data.texts, output) as embedder:
            data_sets[name] = compare(name, data, embedder, output)
            if name == "mmlu-pro":
                left_out = without_categories(data, embedder, output)
    values = {"data_sets": data_sets, "left_out": left_out}
    output.result(values, *report(data_sets, left_out))


@contextmanager
def opened(encoder: str | None, texts: Sequence[str], output: Output) -> Iterator[Embedder | None]:
    """The encoder with ``texts`` embedded; None without one."""
    if encoder is None:
        yield None
        return
    from chimera_train.length.encoder import KnownTexts, open_encoder

    with open_encoder(encoder, max_length=ENCODER_TOKENS) as network:
        known = KnownTexts(network)
        known.learn(list(dict.fromkeys(texts)), output, n_jobs=1)
        yield known


def compare(
    name: str, data: RouterData, embedder: Embedder | None, output: Output
) -> dict[str, Any]:
    """The figures of a data set, of each candidate."""
    fold, moved = grouped_folds(data)
    started = time.process_time()
    probabilities, kept = cross_predict(data, fold, embedder)
    cpu_s = time.process_time() - started
    parts = [data.select(fold == k) for k in range(N_FOLDS)]
    resampled = {
        candidate: over_folds(parts, [scores[fold == k] for k in range(N_FOLDS)])
        for candidate, scores in probabilities.items()
    }
    output.info(f"{name}: macro mAP {resampled[AUTO]['map_macro'][0]:.4f}, {cpu_s:.0f} s of CPU")
    return {
        "questions": len(set(data.question_ids)),
        "rows": len(data.texts),
        "near_duplicates": moved,
        "base_rate": solved_shares(data),
        "base_rate_by_fold": [solved_shares(part) for part in parts],
        "kept": kept,
        "cpu_s": cpu_s,
        "candidates": {
            candidate: {
                **{name: estimate(values) for name, values in of.items()},
                "auto_minus": {
                    name: estimate(resampled[AUTO][name] - values) for name, values in of.items()
                },
                **pooled(data, probabilities[candidate]),
            }
            for candidate, of in resampled.items()
        },
    }


def over_folds(parts: Sequence[RouterData], scores: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Macro mAP and routing gain, means over the folds: first of all questions, then of resamples.

    Questions are resampled within their folds, by the same seed for every candidate.
    """
    of_folds: dict[str, list[np.ndarray]] = {"map_macro": [], "routing_gain": []}
    for k, (part, of_part) in enumerate(zip(parts, scores, strict=True)):
        counts = resamples(part.question_ids, RESAMPLES, seed=k)
        counts = np.vstack([np.ones((1, len(part.texts))), counts])
        precisions = resampled_precision(part.success, of_part, counts)
        of_folds["map_macro"].append(resampled_map(precisions))
        of_folds["routing_gain"].append(resampled_gain(part.success, of_part, part.cost[1], counts))
    return {name: np.mean(values, axis=0) for name, values in of_folds.items()}


def estimate(values: np.ndarray) -> dict[str, Any]:
    """The first of ``values``, and the interval of the others."""
    return {"value": float(values[0]), "ci": interval(values[1:])}


def pooled(data: RouterData, scores: np.ndarray) -> dict[str, Any]:
    """What needs no comparison of scores of different folds, or many questions."""
    counts = resamples(data.question_ids, RESAMPLES, seed=0)
    return {
        "ap": by_model(data, average_precision(data.success, scores)),
        "ece": calibration_error(data.success, scores),
        "pairs": pair_gains(data.models, data.success, scores, data.cost[1], counts),
    }


def by_model(data: RouterData, values: np.ndarray) -> dict[str, float]:
    return dict(zip(data.models, values.tolist(), strict=True))


def cross_predict(
    data: RouterData, fold: np.ndarray, embedder: Embedder | None
) -> tuple[Probabilities, list[str]]:
    """Probabilities of every candidate on all rows, each unseen, and what auto kept by fold."""
    kept, parts = [], []
    for k in range(N_FOLDS):
        validating = fold == (k + 1) % N_FOLDS
        training = data.select((fold != k) & ~validating)
        found, kind = predict(training, data.select(validating), data.select(fold == k), embedder)
        kept.append(kind)
        parts.append(found)
    together = {name: np.empty_like(data.success) for name in parts[0]}
    for k, found in enumerate(parts):
        for name, scores in found.items():
            together[name][fold == k] = scores
    return together, kept


def predict(
    training: RouterData, validation: RouterData, asked: RouterData, embedder: Embedder | None
) -> tuple[Probabilities, str]:
    """Probabilities of every candidate on ``asked``, and which kind auto keeps."""
    settings = RouterSettings()
    space = term_space(training, settings)
    routers = {
        kind: calibrated(scorer, validation)
        for kind, scorer in fit_kinds(training, space, settings).items()
    }
    kind = choose(routers, validation, settings).kind
    found = {name: router.predict(asked.texts) for name, router in routers.items()}
    if embedder is not None:
        found[EMBEDDINGS] = of_embeddings(training, validation, asked, embedder)
    return {AUTO: found[kind], **found}, kind


def of_embeddings(
    training: RouterData, validation: RouterData, asked: RouterData, embedder: Embedder
) -> np.ndarray:
    """A calibrated logistic regression per model on embeddings, scaled to unit variance."""
    known = embedder.embed(training.texts)
    mean, deviation = known.mean(axis=0), known.std(axis=0)
    X, X_validation, X_asked = (
        (embedder.embed(data.texts) - mean) / deviation for data in (training, validation, asked)
    )
    columns = []
    for m, prior in enumerate(log_odds(prior_rates(training))):
        rows = outcomes(training, m)
        if len(set(rows.solved)) < 2:
            columns.append(np.full(len(X_validation) + len(X_asked), prior))
            continue
        regression = LogisticRegression(C=0.003, max_iter=1000)
        regression.fit(X[rows.rows], rows.solved, sample_weight=rows.weights)
        columns.append(regression.decision_function(np.vstack([X_validation, X_asked])))
    logits = np.column_stack(columns)
    calibration = fit_calibration(
        validation.models, validation.success, logits[: len(X_validation)], validation.weights
    )
    return calibration.apply(logits[len(X_validation) :])


def without_categories(
    data: RouterData, embedder: Embedder | None, output: Output
) -> dict[str, Any]:
    """Candidate → figures on questions of categories that training lacks, by categories."""
    fold, _ = grouped_folds(data)
    figures = {}
    for some in LEFT_OUT:
        unseen = np.isin(data.categories, some)
        # A few texts are in more than one category.
        others = ~unseen & ~np.isin(data.question_ids, data.question_ids[unseen])
        validating = others & (fold == 1)
        probabilities, kept = predict(
            data.select(others & ~validating),
            data.select(validating),
            data.select(unseen),
            embedder,
        )
        of = judge(None, data.select(unseen), probabilities, AUTO)
        figures[", ".join(some)] = {
            "rows": int(unseen.sum()),
            "kept": kept,
            "map_macro": {AUTO: of["map_macro"], **of["baselines"]},
            "routing_gain": {AUTO: of["routing_gain"], **of["routing"]["baselines"]},
            "ece": of["ece"]["calibrated"],
            "ci": of["ci"],
        }
        output.info(f"mmlu-pro without {', '.join(some)}: done")
    return figures


def report(data_sets: Mapping[str, Any], left_out: Mapping[str, Any]) -> Iterator[Any]:
    """The figures as tables."""
    for name, of in data_sets.items():
        candidates = of["candidates"]
        yield (
            f"{name}: {of['rows']} rows, {of['questions']} questions, {of['near_duplicates']} of"
            f" them moved beside a near-duplicate; auto kept {', '.join(of['kept'])}"
        )
        columns = ["macro mAP", "auto - it", "routing gain", "auto - it", "ECE"]
        yield table(["", *columns], [_row(*item) for item in candidates.items()])
        rows = [
            [model, rate, *(figures["ap"][model] for figures in candidates.values())]
            for model, rate in of["base_rate"].items()
        ]
        yield table(["average precision", "base rate", *candidates], rows)
        pairs = zip(*(figures["pairs"] for figures in candidates.values()), strict=True)
        rows = [[p[0]["cheap"], p[0]["dear"], *(each["gain"] for each in p)] for p in pairs]
        yield table(["gain over cheap", "and dear", *candidates], rows)
    for key in ("map_macro", "routing_gain") if left_out else ():
        yield f"MMLU-Pro, categories left out of training: {key.replace('_', ' ')}"
        rows = [[name, of["rows"], *of[key].values()] for name, of in left_out.items()]
        yield table(["left out", "rows", *next(iter(left_out.values()))[key]], rows)


def _row(candidate: str, of: Mapping[str, Any]) -> list[Any]:
    cells = [
        cell
        for key in ("map_macro", "routing_gain")
        for cell in (
            _with_ci(of[key]),
            None if candidate == AUTO else _with_ci(of["auto_minus"][key]),
        )
    ]
    return [candidate, *cells, of["ece"]]


def _with_ci(estimated: Mapping[str, Any]) -> str:
    low, high = estimated["ci"]
    return f"{estimated['value']:.4f} ({low:.4f} to {high:.4f})"


if __name__ == "__main__":
    run(main)

"""How well routers tell which model solves a question, and what choosing by them gains.

    python benchmarks/router_quality.py [--data DIR] [--encoder DIR] [--only NAME] [--json]

``--data`` is the folder of the public data, by default CHIMERA_SHARED_DATA or ``../shared/data``
beside the repository; ``router_data`` tells what the outcomes of each data set are, and what a
question costs. ``--encoder`` is a sentence encoder: a logistic regression on its embeddings, which
stay as they are, is compared too, though no kind of router is made of it.

Five folds by question, near-duplicates together. Each is predicted by routers that were fitted on
three others and calibrated on the next one. ``auto`` is what ``fit router --kind auto`` would keep
in each fold, by the routing gain on its validation questions. The figures are those of
``router.judge`` on the predictions of all folds together; differences are paired.

In MMLU-Pro, three whole categories at a time are left out of training: what is shown is the mean
over their questions, beside the figures of the same questions when other questions of their
categories are known.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from length_data import default_data, run
from router_data import ROUTER_DATA_SETS, load_outcomes
from sklearn.linear_model import LogisticRegression

from chimera_train.output import Output, table
from chimera_train.predict.encoder import Embedder
from chimera_train.predict.router_scorers import log_odds
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.choose import choose
from chimera_train.router.judge import judge
from chimera_train.router.kinds import FITS, calibrated, term_space
from chimera_train.router.labels import RouterData, grouped_folds
from chimera_train.router.outcomes import outcomes, prior_rates
from chimera_train.router.settings import RouterSettings
from chimera_train.traces.split import N_FOLDS

AUTO = "auto"
EMBEDDINGS = "encoder + logreg"
# In order of their names, so that nobody chose them; all are measured but the last, physics.
LEFT_OUT = (
    ("biology", "chemistry", "computer science"),
    ("economics", "health", "history"),
    ("math", "other", "philosophy"),
)
ENCODER_TOKENS = 256

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
    """The figures of a data set: ``judge`` of ``auto``, with every candidate as a baseline."""
    fold, moved = grouped_folds(data)
    started = time.process_time()
    probabilities, kept = cross_predict(data, fold, embedder)
    figures = judge(None, data, probabilities, AUTO)
    single = {
        candidate: judge(None, data, {candidate: scores}, candidate)
        for candidate, scores in probabilities.items()
    }
    output.info(f"{name}: {figures['map_macro']:.4f}, {time.process_time() - started:.0f} s of CPU")
    return {
        "questions": len(set(data.question_ids)),
        "rows": len(data.texts),
        "near_duplicates": moved,
        "balance": {
            str(k): (data.success[fold == k] >= 0.5).mean(axis=0).tolist() for k in range(N_FOLDS)
        },
        "kept": kept,
        "auto": figures,
        "candidates": {
            candidate: {
                key: of[key]
                for key in (
                    "map_macro",
                    "ci",
                    "ap",
                    "ap_ci",
                    "base_rate",
                    "ece",
                    "routing_gain",
                    "contested_map_macro",
                )
            }
            | {"routing_gain_ci": of["routing"]["ci"], "pairs": of["routing"]["pairs"]}
            for candidate, of in single.items()
        },
    }


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
        kind: calibrated(fit(training, space, settings), validation) for kind, fit in FITS.items()
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
        yield (
            f"{name}: {of['rows']} rows, {of['questions']} questions, {of['near_duplicates']} of"
            f" them moved beside a near-duplicate; auto kept {', '.join(of['kept'])}"
        )
        yield table(
            ["", "macro mAP", "auto - it", "ECE", "routing gain", "auto - it"],
            [_row(candidate, of) for candidate in of["candidates"]],
        )
        yield table(
            ["model", "base rate", *of["candidates"]],
            [
                [model, rate, *(figures["ap"].get(model) for figures in of["candidates"].values())]
                for model, rate in of["auto"]["base_rate"].items()
            ],
        )
        yield table(
            ["cheap", "dear", *of["candidates"]],
            list(_pairs(of["candidates"])),
        )
    if left_out:
        yield "MMLU-Pro, categories left out of training: macro mAP, and routing gain"
        for key in ("map_macro", "routing_gain"):
            columns = list(next(iter(left_out.values()))[key])
            yield table(
                ["left out", "rows", *columns],
                [[name, of["rows"], *of[key].values()] for name, of in left_out.items()],
            )


def _row(candidate: str, of: Mapping[str, Any]) -> list[Any]:
    figures = of["candidates"][candidate]
    differences = of["auto"]["differences"].get(candidate)

    def difference(key: str) -> str | None:
        return None if differences is None else _with_ci(*differences[key].values())

    return [
        candidate,
        _with_ci(figures["map_macro"], figures["ci"]),
        difference("map_macro"),
        figures["ece"]["calibrated"],
        _with_ci(figures["routing_gain"], figures["routing_gain_ci"]),
        difference("routing_gain"),
    ]


def _pairs(candidates: Mapping[str, Any]) -> Iterator[list[Any]]:
    of_candidates: Sequence[Sequence[Mapping[str, Any]]] = [
        of["pairs"] for of in candidates.values()
    ]
    for pair in zip(*of_candidates, strict=True):
        yield [pair[0]["cheap"], pair[0]["dear"], *(of["gain"] for of in pair)]


def _with_ci(value: float | None, ci: Sequence[float] | None) -> str | None:
    if value is None or ci is None:
        return None
    return f"{value:.4f} ({ci[0]:.4f} to {ci[1]:.4f})"


if __name__ == "__main__":
    run(main)

"""How fast lengths are predicted and fitted, and what a predictor of many programs weighs.

    python benchmarks/length_speed.py [--data DIR] [--estimator NAME] [--tokenizer FILE] [--million]

Estimators of six models are fitted on 10,000 programs each: MMLU-Pro as in ``length_data``, which
has 6,671 questions, and more that have one question's text and lengths and another's options. Size
is that of the directory that is written, per model.

A prompt is questions behind each other, cut at a number of words and punctuation marks. What was
counted in a text is remembered, so each text is new but where it says otherwise. A row takes
everything from a request to three quantiles, with and without counting the tokens of its text. FILE
is the ``tokenizer.json`` to count with, by default the pocket models': its vocabulary is small, so
that it finds more tokens in a text than those of large models do. The estimator alone is compared
with the library that fitted it, on the same rows and with one thread.

``--million`` also fits a million stages, of programs with three, in a process of its own, and shows
its peak memory. Times are the wall's and the processor's. Compilation is not timed.
"""

import argparse
import itertools
import multiprocessing
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from length_data import SIX, Program, default_data, mmlu_pro, rows_of, run

from chimera_train.length.estimators import (
    POOLED,
    FittedEstimator,
    FittedLength,
    fit_estimators,
)
from chimera_train.length.evaluate import judged_rows
from chimera_train.length.judge import judge
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import write_length
from chimera_train.output import Output, table
from chimera_train.predict.features import StageRequest
from chimera_train.predict.tokens import TokenCounter

POCKET = Path(__file__).parents[1] / "chimera_train" / "pool" / "pocket" / "qwen" / "tokenizer.json"
PROGRAMS = 10_000
WORDS = (110, 1000)
QUANTILES = (0.1, 0.5, 0.9)
CALLS = 2000
LIBRARY_CALLS = 300
BATCH, BATCHES = 64, 100
STAGES = ("solve", "verify", "revise")
MILLION = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--estimator", choices=("forest", "boosted"), default="forest")
    parser.add_argument("--tokenizer", type=Path, default=POCKET)
    parser.add_argument("--million", action="store_true", help="also fit a million stages")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    output = Output(as_json=arguments.json)
    settings = LengthSettings(estimator=arguments.estimator)
    counter = TokenCounter(arguments.tokenizer)

    values: dict[str, Any] = {"estimator": arguments.estimator}
    if arguments.million:
        # First, as a process inherits the peak memory of the one that starts it.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as executor:
            values["million"] = executor.submit(fit_million, arguments.data, settings).result()
        output.info("a million stages: done")
    rows = rows_of(programs(arguments.data, PROGRAMS, SIX))
    fitted, values["fit"] = fit(rows, settings)
    values["fit"]["mib_per_model"] = mib(fitted, settings, rows) / len(SIX)
    output.info(f"fitted on {len(rows)} stages")
    for words in WORDS:
        texts = prompts(arguments.data, words)
        values[f"{words}_words"] = latency(fitted, counter, words, texts)
    output.result(values, *report(values))


def programs(data: Path, n: int, models: Sequence[str], n_stages: int = 1) -> Iterator[Program]:
    """``n`` programs of each of ``models``, the same questions in the same order.

    The tokens of later stages are those of the first, times lognormal factors.
    """
    rng = np.random.default_rng(0)
    known = list(mmlu_pro(data))
    of_question = [known[i : i + len(SIX)] for i in range(0, len(known), len(SIX))]
    for number in range(n):
        own = of_question[number % len(of_question)]
        text = own[0].text
        if number >= len(of_question):
            other = of_question[rng.integers(len(of_question))][0].text
            text = text.partition("\nA. ")[0] + "\nA. " + other.partition("\nA. ")[2]
        factors = [1.0, *rng.lognormal(-0.5, 0.5, n_stages - 1)]
        for program in own:
            if program.model in models:
                (_, prompt, output), *_ = program.stages
                outputs = [max(1, round(output * factor)) for factor in factors]
                before = np.cumsum([0, *outputs[:-1]])
                stages = [
                    (stage, prompt + int(generated), tokens)
                    for stage, generated, tokens in zip(STAGES, before, outputs, strict=False)
                ]
                yield program._replace(question=text, text=text, stages=stages)


def fit(rows: pd.DataFrame, settings: LengthSettings) -> tuple[FittedLength, dict[str, float]]:
    """The fitted estimators, and what fitting took."""
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = fit_estimators(rows, settings)
    took = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    return fitted, {"rows": len(rows), **took}


def fit_million(data: Path, settings: LengthSettings) -> dict[str, float]:
    """What fitting a million stages took, and this process's peak memory before and after it."""
    n = -(-MILLION // len(SIX) // len(STAGES))
    # A model at a time: the rows take several times as much as the table that they become.
    rows = pd.concat(
        [rows_of(programs(data, n, [model], len(STAGES))) for model in SIX], ignore_index=True
    )
    before = peak_gb()
    _, took = fit(rows, settings)
    return {**took, "gb_before": before, "gb": peak_gb()}


def peak_gb() -> float:
    """Most memory that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e6)


def mib(fitted: FittedLength, settings: LengthSettings, rows: pd.DataFrame) -> float:
    """The size of what is written."""
    some = rows.iloc[:: len(rows) // 1000]
    # A card needs figures, whose size does not depend on the rows that they are of.
    figures = judge(judged_rows(some, rows, fitted.predictor, settings.seed), settings.seed)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name, "length")
        write_length(directory, fitted, settings, figures, rows["question_id"])
        return sum(path.stat().st_size for path in directory.iterdir()) / 2**20


def prompts(data: Path, words: int) -> Iterator[str]:
    """Distinct texts of so many words and punctuation marks: questions that follow each other."""
    known = [program.text for program in mmlu_pro(data) if program.model == SIX[0]]
    rng, seen = np.random.default_rng(words), set()
    while True:
        ends: list[int] = []
        text = ""
        while len(ends) < words:
            text += known[rng.integers(len(known))] + "\n"
            ends = [match.end() for match in re.finditer(r"\w+|[^\w\s]", text)]
        text = text[: ends[words - 1]]
        if text not in seen:
            seen.add(text)
            yield text


def latency(
    fitted: FittedLength, counter: TokenCounter, words: int, texts: Iterator[str]
) -> dict[str, Any]:
    """Times of rows, of batches and of the parts of a row, on texts that were not seen before.

    ``tokens`` is what ``counter`` finds in a text. Requests have its words, as in training, and so
    ``outside``, the share that the predictor takes for unlike its training data, is not of those.
    """
    predictor = fitted.predictor
    models = itertools.cycle(SIX)

    def requests(n: int) -> list[StageRequest]:
        return [
            StageRequest("direct", STAGES[0], text, 0, words, words)
            for text in itertools.islice(texts, n)
        ]

    def predict(some: Sequence[StageRequest]) -> None:
        predictor.predict(next(models), some, QUANTILES)

    def count_and_predict(some: Sequence[StageRequest]) -> None:
        for one in some:
            counter.count(one.text)
        predict(some)

    predict(requests(BATCH))  # compiles
    one_by_one = [[one] for one in requests(CALLS)]
    # The second time, for another model, the texts are known.
    batches = [batch for batch in map(requests, [BATCH] * BATCHES) for _ in range(2)]
    of_batches = times(predict, batches)
    figures = {
        "one row": times(predict, one_by_one),
        "one row, with counting": times(count_and_predict, [[one] for one in requests(CALLS)]),
        f"{BATCH} rows": of_batches[::2],
        f"{BATCH} rows, known texts": of_batches[1::2],
        "features alone": times(
            lambda some: predictor.features.rows(next(models), some),
            [[one] for one in requests(CALLS)],
        ),
        **estimator_times(fitted, requests(LIBRARY_CALLS)),
    }
    seen = [one for (one,) in one_by_one[:LIBRARY_CALLS]]
    return {
        "ms": {name: percentiles(found) for name, found in figures.items()},
        "outside": float((predictor.predict_with_source(SIX[0], seen).outside > 0).mean()),
        "tokens": float(np.mean([counter.count(one.text) for one in seen])),
    }


def estimator_times(
    fitted: FittedLength, requests: Sequence[StageRequest]
) -> dict[str, np.ndarray]:
    """Times of the estimator alone, ours and the library's, whose quantiles agree."""
    predictor, model = fitted.predictor, SIX[0]
    X, _ = predictor.features.rows(model, requests)
    rows, lowest = [X[[i]] for i in range(len(X))], np.full(1, -np.inf)
    estimator, library = predictor.estimators[model], library_of(fitted.estimators[POOLED])

    def ours(row: np.ndarray) -> np.ndarray:
        return estimator.quantiles_above(row, QUANTILES, lowest)

    for row in rows:
        if not np.allclose(ours(row), library(row), rtol=0, atol=1e-9):
            raise SystemExit("the estimator's quantiles differ from the library's")
    return {"estimator alone": times(ours, rows), "its library": times(library, rows)}


def library_of(estimator: FittedEstimator) -> Callable[[np.ndarray], np.ndarray]:
    """The quantiles of rows as the library that fitted ``estimator`` finds them."""
    if isinstance(estimator, Mapping):
        return lambda X: np.sort(
            np.column_stack([estimator[q].predict(X, num_threads=1) for q in QUANTILES])
        )
    estimator.set_params(n_jobs=1)  # threads cost more than they save on one row
    return lambda X: estimator.predict(X, quantiles=list(QUANTILES))


def times(call: Callable[[Any], Any], values: Sequence[Any]) -> np.ndarray:
    """Wall and CPU time of ``call`` with each of ``values``, ms, shape (n, 2)."""
    found = np.empty((len(values), 2))
    for i, value in enumerate(values):
        wall, cpu = time.perf_counter(), time.thread_time()
        call(value)
        found[i] = time.perf_counter() - wall, time.thread_time() - cpu
    return 1e3 * found


def percentiles(found: np.ndarray) -> dict[str, float]:
    """Of what ``times`` gives."""
    (p50, cpu_p50), (p99, cpu_p99) = np.percentile(found, [50, 99], axis=0).tolist()
    return {"p50": p50, "p99": p99, "cpu_p50": cpu_p50, "cpu_p99": cpu_p99}


def report(values: Mapping[str, Any]) -> Iterator[Any]:
    """The figures as text."""
    yield (
        "{estimator}: {fit[rows]} stages of {n} models fitted in {fit[wall_s]:.1f} s"
        " ({fit[cpu_s]:.1f} s of CPU), {fit[mib_per_model]:.2f} MiB a model"
    ).format(**values, n=len(SIX))
    if "million" in values:
        yield (
            "{rows} stages fitted in {wall_s:.0f} s ({cpu_s:.0f} s of CPU), with at most {gb:.2f}"
            " GB of memory, {gb_before:.2f} before fitting"
        ).format(**values["million"])
    for words in WORDS:
        of = values[f"{words}_words"]
        yield (
            f"\nms for {words} words ({of['tokens']:.0f} tokens), of which {of['outside']:.0%} are"
            " outside of the training data"
        )
        ms = of["ms"]
        yield table(
            ["", "p50", "p99", "CPU p50", "CPU p99"],
            [[name, *found.values()] for name, found in ms.items()],
        )
        ratio = ms["its library"]["p50"] / ms["estimator alone"]["p50"]
        yield f"the library takes {ratio:.1f} times as long"


if __name__ == "__main__":
    run(main)

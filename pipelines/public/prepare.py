"""Public outcomes of real models as trace tables, which every command reads like collected ones.

    python pipelines/public/prepare.py WORKLOAD --out DIR [--data DIR]

DIR holds the public data; by default CHIMERA_SHARED_DATA or ``../shared/data`` beside the
repository. The same files give the same tables. The workloads are:

    gsm8k        four MathCoder models; a stage is what a model wrote up to the next execution of
                 its code, its prompt the question and everything before
    mmlu-llama   Llama-3.1 8B and 70B, one stage
    mmlu-qwen    Qwen1.5 7B and 72B, Mistral-7B and Mixtral-8x7B, one stage
    mapcoder     ChatGPT and GPT-4-Turbo under the workflows that both ran; only a program's totals
                 are known, which are taken to be spread evenly over its calls

What the data does not have: prompt tokens of GSM8K and MMLU-Pro are the words and punctuation marks
of the question, with the options of MMLU-Pro, whose five worked examples, the same for all
questions of a category, are taken to be in the engine's prefix cache. Why an output ended is not
known either: it counts as the model's own end.

A question's id is a hash of its normalised text, so that no text is on both sides of a split. Of
questions with the same text (and other options, in MMLU-Pro) the first is kept.
"""

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from script import default_data, run

from chimera_train.errors import DataError
from chimera_train.files import replaced_directory, sha256, write_json
from chimera_train.output import Output
from chimera_train.traces.schemas import SCHEMA_VERSION
from chimera_train.traces.store import write_table

__all__ = ["WORKLOADS", "prepare"]

GSM8K = "gsm8k/gsm8k_multi_model.jsonl.gz"
GSM8K_STAGES = "gsm8k/gsm8k_stage_tokens.jsonl.gz"
MMLU_PRO = "mmlu_pro/mmlu_pro_multi_model.jsonl.gz"
MAPCODER = "workflows/mapcoder_outcomes.jsonl.gz"

LLAMA = ("Meta-Llama-3_1-8B-Instruct", "Meta-Llama-3_1-70B-Instruct")
QWEN_MISTRAL = (
    "Qwen1.5-7B-Chat",
    "Mistral-7B-Instruct-v0.2",
    "Mixtral-8x7B-Instruct-v0.1",
    "Qwen1.5-72B-Chat",
)

# Of Llama 2. Some MathCoder programs never came to an answer and ran until their harness stopped
# them, at up to 13,000 tokens. A server would have cut them here.
GSM8K_CONTEXT_TOKENS = 4096


class Program(NamedTuple):
    """One program: what a model did on a question.

    ``text`` is the question as a router reads it, ``stages`` are (prompt, output) tokens, and
    ``user_tokens`` those of the question where it is known what part of the prompts it is.
    """

    question: str
    text: str
    workflow: str
    model: str
    score: float
    stages: Sequence[tuple[int, int]]
    user_tokens: int | None = None


def gsm8k(data: Path) -> Iterator[Program]:
    """MathCoder on GSM8K."""
    questions = {row["idx"]: row["question"] for row in read_lines(data / GSM8K)}
    for row in read_lines(data / GSM8K_STAGES):
        text = questions[row["idx"]]
        tokens = word_tokens(text)
        calls = list(llm_calls(row["stages"], tokens))
        cut = list(_within_context(calls))
        score = float(row["correct"] and cut == calls)
        yield Program(text, text, "mathcoder", row["model"], score, cut, tokens)


def llm_calls(fragments: Sequence[Mapping[str, Any]], context: int) -> Iterator[tuple[int, int]]:
    """(prompt, output) tokens of each call; an execution's tokens are the next one's prompt."""
    output = 0
    for fragment in fragments:
        if fragment["role"] != "execution":
            output += fragment["tokens"]
            continue
        if output:
            yield context, output
        context += output + fragment["tokens"]
        output = 0
    if output:
        yield context, output


def _within_context(calls: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for prompt, output in calls:
        room = GSM8K_CONTEXT_TOKENS - prompt
        if room < 1:
            return
        yield prompt, min(output, room)
        if output >= room:
            return


def mmlu_pro(models: Sequence[str]) -> Callable[[Path], Iterator[Program]]:
    """MMLU-Pro on ``models``, without the questions that one of them answered with nothing."""

    def programs(data: Path) -> Iterator[Program]:
        seen = set()
        for row in read_lines(data / MMLU_PRO):
            outcomes = [row["models"][model] for model in models]
            known = _normalised(row["question"]) in seen
            seen.add(_normalised(row["question"]))
            if known or any(outcome["tokens"] < 1 for outcome in outcomes):
                continue
            letters = zip("ABCDEFGHIJ", row["options"], strict=False)
            options = (f"{letter}. {option}" for letter, option in letters)
            text = "\n".join([row["question"], *options])
            for model, outcome in zip(models, outcomes, strict=True):
                stages = [(word_tokens(text), outcome["tokens"])]
                score = float(outcome["correct"])
                yield Program(row["question"], text, "direct", model, score, stages)

    return programs


def mapcoder(data: Path) -> Iterator[Program]:
    """MapCoder's outcomes, of the workflows that both models ran on a data set."""
    rows = list(read_lines(data / MAPCODER))
    ran = {(row["dataset"], row["workflow"], row["model"]) for row in rows}
    models = {row["model"] for row in rows}
    # A few texts differ by a character between the models' files.
    texts = {(row["dataset"], row["task_id"]): row["question"] for row in rows}
    first = {_normalised(text): task for task, text in reversed(texts.items())}
    for row in rows:
        text = texts[row["dataset"], row["task_id"]]
        is_first = first[_normalised(text)] == (row["dataset"], row["task_id"])
        if is_first and all((row["dataset"], row["workflow"], model) in ran for model in models):
            calls = row["api_calls"]
            prompts, outputs = (
                _evenly(row[f"{kind}_tokens"], calls) for kind in ("prompt", "completion")
            )
            stages = list(zip(prompts, outputs, strict=True))
            score = float(row["solved"])
            yield Program(text, text, row["workflow"], row["model"], score, stages)


def _evenly(total: int, parts: int) -> list[int]:
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


class Workload(NamedTuple):
    """Where a workload comes from: the files, and what makes programs of them."""

    files: Sequence[str]
    programs: Callable[[Path], Iterator[Program]]


WORKLOADS: Mapping[str, Workload] = {
    "gsm8k": Workload([GSM8K, GSM8K_STAGES], gsm8k),
    "mmlu-llama": Workload([MMLU_PRO], mmlu_pro(LLAMA)),
    "mmlu-qwen": Workload([MMLU_PRO], mmlu_pro(QWEN_MISTRAL)),
    "mapcoder": Workload([MAPCODER], mapcoder),
}


def prepare(data: Path, name: str, directory: Path) -> dict[str, int]:
    """Write the trace tables of workload ``name``; how many programs, stages and questions.

    Raises:
        DataError: a file of the public data is missing or is not what it should be.
    """
    workload = WORKLOADS[name]
    missing = [file for file in workload.files if not (data / file).is_file()]
    if missing:
        raise DataError(
            f"{data} has no {missing[0]}: give the folder of the public data with --data, or in"
            " CHIMERA_SHARED_DATA."
        )
    try:
        tables = _tables(name, workload.programs(data))
    except (OSError, EOFError, ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise DataError(
            f"{' or '.join(workload.files)} in {data} is not what workload '{name}' is made of"
            f" ({type(error).__name__}: {error}): get the public data again."
        ) from error
    counts = {table: len(rows) for table, rows in tables.items()}
    with replaced_directory(directory) as staging:
        for table_name, rows in tables.items():
            write_table(staging, table_name, rows)
        provenance = {
            "schema_version": SCHEMA_VERSION,
            "status": "complete",
            "source": name,
            "files": {file: sha256(data / file) for file in workload.files},
            "counts": counts,
        }
        write_json(staging / "provenance.json", provenance)
    return counts


def _tables(name: str, outcomes: Iterator[Program]) -> dict[str, list[dict[str, Any]]]:
    programs, stages, questions = [], [], {}
    for outcome in outcomes:
        question_id = f"{name}-{text_id(outcome.question)}"
        questions[question_id] = {
            "question_id": question_id,
            "task": name,
            "text": outcome.text,
        }
        program_id = f"{outcome.model}/{outcome.workflow}/{question_id}"
        programs.append(
            {
                "program_id": program_id,
                "task": name,
                "question_id": question_id,
                "workflow": outcome.workflow,
                "model": outcome.model,
                "sample": 0,
                "n_stages": len(outcome.stages),
                "total_output_tokens": sum(output for _, output in outcome.stages),
                "score": outcome.score,
                "correct": outcome.score == 1,
            }
        )
        stages += [
            {
                "program_id": program_id,
                "stage_index": index,
                "stage": f"call{index + 1}",
                "prompt_tokens": prompt,
                "user_tokens": outcome.user_tokens,
                "output_tokens": output,
                "finish_reason": "stop",
                "attempt": 1,
            }
            for index, (prompt, output) in enumerate(outcome.stages)
        ]
    return {"programs": programs, "stages": stages, "questions": list(questions.values())}


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def word_tokens(text: str) -> int:
    """Words and punctuation marks, which stand for the tokens of a text without a tokenizer."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def _normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def text_id(text: str) -> str:
    """The same for texts that differ in case, punctuation or white space alone."""
    return hashlib.sha256(_normalised(text).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counts = prepare(arguments.data, arguments.workload, arguments.out)
    Output(as_json=arguments.json).result(
        counts, ", ".join(f"{count} {name}" for name, count in counts.items())
    )


if __name__ == "__main__":
    run(main)

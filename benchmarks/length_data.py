"""Real programs, and the rows that length predictors are fitted and judged on (``length.rows``).

``mathcoder``
    Four MathCoder models on GSM8K. A stage is what a model wrote up to the next execution of its
    code, its prompt the question and everything before; the first eight stages of a program are
    rows. The stages' texts are not in the data, so the question's stands for them.
``mapcoder``
    ChatGPT and GPT-4-Turbo on HumanEval and MBPP under four agent workflows. The outputs of a
    program's calls are only known as their sum, so a program is one row.
``mmlu-pro``
    Six models on ten categories of MMLU-Pro, one stage. The text begins as the benchmark's own
    prompt does, without the worked examples, which are the same for all questions of a category.
``gsm8k``
    Sixteen models on GSM8K, one stage.

Prompt tokens are the words and punctuation marks of the question, and of its options in MMLU-Pro.
Outputs without a token, which a few models of GSM8K gave, are left out. The id of a question is a
hash of its normalised text, without options, so that no text is on both sides of a split.
"""

import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from chimera_train.collect.imports.program import text_id, word_tokens
from chimera_train.collect.imports.public import llm_calls
from chimera_train.errors import DataError
from chimera_train.history import History
from chimera_train.traces.split import folds

sys.path.insert(0, str(Path(__file__).parents[1] / "pipelines" / "public"))
from prepare import GSM8K, GSM8K_STAGES, MAPCODER, MMLU_PRO
from script import default_data, run

__all__ = [
    "DATA_SETS",
    "LEFT_OUT",
    "SIX",
    "Program",
    "default_data",
    "gsm8k",
    "load",
    "mapcoder",
    "mathcoder",
    "mmlu_pro",
    "rows_of",
    "run",
]

MOST_STAGES = 8

SIX = (
    "Meta-Llama-3_1-8B-Instruct",
    "Meta-Llama-3_1-70B-Instruct",
    "mathstral-7B",
    "Qwen1.5-72B-Chat",
    "Mixtral-8x7B-Instruct-v0.1",
    "Phi-3-mini-4k-instruct",
)

# Categories of MMLU-Pro that are left out of training, three at a time, in order of their names, so
# that nobody chose them; all are measured but the last, physics.
LEFT_OUT = (
    ("biology", "chemistry", "computer science"),
    ("economics", "health", "history"),
    ("math", "other", "philosophy"),
)


class Program(NamedTuple):
    """One program: ``text`` is its user message, ``stages`` are (id, prompt, output tokens).

    ``score`` is 1 if it came to the right answer, else 0; NaN where nobody graded it.
    """

    question: str
    text: str
    user_tokens: int
    workflow: str
    model: str
    stages: Sequence[tuple[str, int, int]]
    category: str = ""
    score: float = math.nan


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise DataError(
            f"{path} is missing: give the folder of the public data with --data, or in"
            " CHIMERA_SHARED_DATA."
        )
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def mathcoder(data: Path) -> Iterator[Program]:
    questions = {row["idx"]: row["question"] for row in lines_of(data / GSM8K)}
    for row in lines_of(data / GSM8K_STAGES):
        text = questions[row["idx"]]
        tokens = word_tokens(text)
        calls = enumerate(llm_calls(row["stages"], tokens), start=1)
        stages = [(f"step{number}", prompt, output) for number, (prompt, output) in calls]
        score = float(row["correct"])
        yield Program(text, text, tokens, "mathcoder", row["model"], stages, score=score)


def mapcoder(data: Path) -> Iterator[Program]:
    for row in lines_of(data / MAPCODER):
        text, workflow = row["question"], row["workflow"]
        tokens = word_tokens(text)
        stages = [("all calls", tokens, row["completion_tokens"])]
        score = float(row["solved"])
        yield Program(text, text, tokens, workflow, row["model"], stages, score=score)


def mmlu_pro(data: Path, models: Sequence[str] = SIX) -> Iterator[Program]:
    for row in lines_of(data / MMLU_PRO):
        question, category = row["question"], row["category"]
        letters = zip("ABCDEFGHIJ", row["options"], strict=False)
        asked = "\n".join([question, *(f"{letter}. {option}" for letter, option in letters)])
        tokens = word_tokens(asked)
        text = (
            f"The following are multiple choice questions (with answers) about {category}.\n{asked}"
        )
        for model in models:
            outcome = row["models"][model]
            stages = [("answer", tokens, outcome["tokens"])]
            score = float(outcome["correct"])
            yield Program(question, text, tokens, "direct", model, stages, category, score)


def gsm8k(data: Path) -> Iterator[Program]:
    for row in lines_of(data / GSM8K):
        text = row["question"]
        tokens = word_tokens(text)
        for model, outcome in row["models"].items():
            stages = [("answer", tokens, outcome["tokens"])]
            score = float(outcome["correct"])
            yield Program(text, text, tokens, "direct", model, stages, score=score)


DATA_SETS: Mapping[str, Callable[[Path], Iterator[Program]]] = {
    "mathcoder": mathcoder,
    "mapcoder": mapcoder,
    "mmlu-pro": mmlu_pro,
    "gsm8k": gsm8k,
}


def load(data: Path, name: str) -> pd.DataFrame:
    """The rows of data set ``name``, from the folder of the public data.

    Raises:
        DataError: a file is missing.
    """
    return rows_of(DATA_SETS[name](data))


def rows_of(programs: Iterator[Program]) -> pd.DataFrame:
    """The columns of ``length.rows.stage_rows`` that fitting needs, and the category.

    Programs that wrote nothing are left out.
    """
    rows = []
    for number, program in enumerate(programs):
        remaining = sum(output for _, _, output in program.stages)
        if remaining < 1:
            continue
        question_id, history = text_id(program.question), History()
        for stage, prompt, output in program.stages[:MOST_STAGES]:
            rows.append(
                {
                    "program_id": f"{program.model}/{number}",
                    "question_id": question_id,
                    "model": program.model,
                    "workflow": program.workflow,
                    "stage": stage,
                    "text": program.text,
                    "system_tokens": 0,
                    "user_tokens": program.user_tokens,
                    "prompt_tokens": prompt,
                    "history": history,
                    "target_tokens": remaining,
                    "category": program.category,
                }
            )
            history = history.after(stage, prompt, output)
            remaining -= output
    table = pd.DataFrame(rows)
    return table.assign(fold=folds(table["question_id"]))

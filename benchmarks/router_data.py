"""Real outcomes as routers are fitted and judged on them (``router.labels``).

``mmlu-pro``
    Six models on ten categories of MMLU-Pro.
``gsm8k``
    Sixteen models on GSM8K.
``mathcoder``
    Four MathCoder models on GSM8K; they are among the sixteen.
``mapcoder``
    ChatGPT and GPT-4-Turbo on HumanEval and MBPP. What is chosen is a model under a workflow, of
    the six pairs that ran on both.

The texts and ids of questions are those of ``length_data``. What a question costs on a model is its
mean output tokens times the billions of parameters that each of them goes through: latencies are
not in the data, and a token of a large model costs more than one of a small one. The sizes of GPT
are not known; the figures taken for them are between those of its open contemporaries by price.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from length_data import Program, gsm8k, mapcoder, mathcoder, mmlu_pro

from chimera_train.collect.imports.program import text_id
from chimera_train.router.labels import RouterData, router_data
from chimera_train.traces.store import Traces

__all__ = ["ROUTER_DATA_SETS", "load_outcomes", "outcomes_of"]

# Billions of parameters that a token goes through.
ACTIVE = {
    "Meta-Llama-3_1-8B-Instruct": 8,
    "Meta-Llama-3_1-70B-Instruct": 70,
    "mathstral-7B": 7,
    "Qwen1.5-7B-Chat": 7,
    "Mixtral-8x7B-Instruct-v0.1": 13,
    "Phi-3-mini-4k-instruct": 3.8,
    "openai-6b_finetuning": 6,
    "openai-6b_verification": 6,
    "openai-175b_finetuning": 175,
    "openai-175b_verification": 175,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 13,
    "gpt-4-1106-preview": 220,
    "tora_code_34b": 34,
    "tora_70b": 70,
    "rho-math-1b-v0.1": 1,
    "rho-math-7b-v0.1": 7,
    "rho-math-1b-interpreter-v0.1": 1,
    "rho-math-7b-interpreter-v0.1": 7,
    "mathcoder-L-7b": 7,
    "mathcoder-L-13b": 13,
    "mathcoder-L-70b": 70,
    "mathcoder-CL-34b": 34,
    "ChatGPT": 20,
    "GPT4-Turbo": 220,
}
MMLU_PRO_MODELS = (
    "Qwen1.5-7B-Chat",
    "Phi-3-mini-4k-instruct",
    "mathstral-7B",
    "Meta-Llama-3_1-8B-Instruct",
    "Mixtral-8x7B-Instruct-v0.1",
    "Meta-Llama-3_1-70B-Instruct",
)
# The other two workflows of ChatGPT were not run on both data sets.
_INCOMPLETE = {("ChatGPT", "CoT"), ("ChatGPT", "SelfPlanning")}


def _configurations(data: Path) -> Iterator[Program]:
    """The programs of ``mapcoder`` with a model under a workflow for the model."""
    for program in mapcoder(data):
        if (program.model, program.workflow) not in _INCOMPLETE:
            yield program._replace(model=f"{program.model} {program.workflow}")


ROUTER_DATA_SETS: Mapping[str, Callable[[Path], Iterator[Program]]] = {
    "mmlu-pro": partial(mmlu_pro, models=MMLU_PRO_MODELS),
    "gsm8k": gsm8k,
    "mathcoder": mathcoder,
    "mapcoder": _configurations,
}


def load_outcomes(data: Path, name: str) -> RouterData:
    """The outcomes of data set ``name``, from the folder of the public data.

    Raises:
        DataError: a file is missing.
    """
    return outcomes_of(ROUTER_DATA_SETS[name](data))


def outcomes_of(programs: Iterator[Program]) -> RouterData:
    """What ``fit router`` would make of the programs, with their cost in ``output_tokens``."""
    table = pd.DataFrame(programs)
    table = table.assign(
        program_id=[f"{i}" for i in range(len(table))],
        question_id=table["question"].map({text: text_id(text) for text in set(table["question"])}),
        sample=0,
        program_latency_ms=np.nan,
        total_output_tokens=[sum(stage[2] for stage in stages) for stages in table["stages"]],
    )
    questions = table.drop_duplicates("question_id")
    metadata = [f'{{"category": "{name}"}}' if name else None for name in questions["category"]]
    data = router_data(
        Traces(
            programs=table,
            stages=table.rename(columns={"text": "user_text"}).assign(system_text=None),
            questions=questions.assign(metadata=metadata),
        )
    )
    active = [ACTIVE[model.split(" ")[0]] for model in data.models]
    return dataclasses.replace(data, output_tokens=data.output_tokens * np.array(active))

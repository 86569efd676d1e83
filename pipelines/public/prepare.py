"""Public outcomes of real models as trace tables, which every command reads like collected ones.

    python pipelines/public/prepare.py WORKLOAD --out DIR [--data DIR]

DIR holds the public data; by default CHIMERA_SHARED_DATA or ``../shared/data`` beside the
repository. The same files give the same tables. The workloads are:

    gsm8k        four MathCoder models
    mmlu-llama   Llama-3.1 8B and 70B
    mmlu-qwen    Qwen1.5 7B and 72B, Mistral-7B and Mixtral-8x7B
    mapcoder     ChatGPT and GPT-4-Turbo under the workflows that both ran

They are imported as by ``chimera-train collect import``; ``chimera_train.collect.imports.public``
tells what is a stage, and what the data does not have.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from script import default_data, run

from chimera_train.collect.imports.public import gsm8k, mapcoder, mmlu_pro
from chimera_train.collect.imports.write import Source, import_programs
from chimera_train.collect.privacy import Privacy
from chimera_train.errors import DataError
from chimera_train.output import Output

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


class Workload(NamedTuple):
    """Where a workload comes from: the files, and what makes programs of them."""

    files: Sequence[str]
    source: Source


WORKLOADS: Mapping[str, Workload] = {
    "gsm8k": Workload([GSM8K, GSM8K_STAGES], gsm8k),
    "mmlu-llama": Workload([MMLU_PRO], partial(mmlu_pro, task="mmlu-llama", models=LLAMA)),
    "mmlu-qwen": Workload([MMLU_PRO], partial(mmlu_pro, task="mmlu-qwen", models=QWEN_MISTRAL)),
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
    files = [str(data / file) for file in workload.files]
    try:
        counts, _ = import_programs(
            workload.source, name, files, directory, Privacy(), skip_invalid=False
        )
    except DataError as error:
        raise DataError(
            f"{' or '.join(workload.files)} in {data} is not what workload '{name}' is made of"
            f" ({error}): get the public data again."
        ) from error
    return counts


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

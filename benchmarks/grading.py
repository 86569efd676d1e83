"""Whether answers with known verdicts are graded so: mathematics, and programs by their tests.

    python benchmarks/grading.py [--data DIR] [--only PART] [--json]

``--data`` is the folder of the public data, by default CHIMERA_SHARED_DATA or ``../shared/data``
beside the repository; ``grading_answers`` tells how the answers are made. Programs run in
sandboxes, as many at a time as there are cores. ``wall_s`` is of the whole part.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from grading_answers import MathAnswer, changed, functions_called, look_up, math_answers
from length_data import default_data, run

from chimera_train.output import Output, table
from chimera_train.tasks import CodeTask, Question, get_task, open_task
from chimera_train.tasks.data_task import DataTask
from chimera_train.tasks.rows import read_rows

PER_KIND = 12


def mathematics(data: Path) -> list[MathAnswer]:
    """MATH's answers, in forms made by rule."""
    task = opened("math", data / "math" / "math_dev.jsonl.gz")
    solutions = [row.values["solution"] for row in read_rows(task.settings.source, task.task_file)]
    questions = [
        replace(question, metadata={"solution": solution})
        for question, solution in zip(task.all_questions, solutions, strict=True)
    ]
    return list(math_answers(questions, PER_KIND))


def humaneval(data: Path) -> list[MathAnswer]:
    """Canonical solutions, and the same with other results."""
    task = opened("humaneval", data / "code" / "humaneval.jsonl.gz")
    answers: list[MathAnswer] = []
    for question, row in with_rows(task):
        code = row["prompt"] + row["canonical_solution"]
        answers += [(question, row["canonical_solution"], True)]
        answers += [(question, changed(code, [row["entry_point"]]), False)]
    return answers


def mbpp(data: Path) -> list[MathAnswer]:
    """Canonical solutions, and the same with other results."""
    task = opened("mbpp", data / "code" / "mbpp.jsonl.gz")
    answers: list[MathAnswer] = []
    for question, row in with_rows(task):
        names = functions_called(row["code"], row["test_list"])
        answers += [(question, row["code"], True), (question, changed(row["code"], names), False)]
    return answers


def apps(data: Path) -> list[MathAnswer]:
    """Programs that look all results up, and the same with one result altered."""
    task = opened("code", data / "code" / "apps_128.jsonl.gz")
    return [
        (question, look_up(json.loads(question.answer), alter=not right), right)
        for question in task.all_questions
        for right in (True, False)
    ]


PARTS: dict[str, tuple[str, Callable[[Path], list[MathAnswer]]]] = {
    "math": ("math", mathematics),
    "humaneval": ("humaneval", humaneval),
    "mbpp": ("mbpp", mbpp),
    "apps": ("code", apps),
}


def opened(name: str, path: Path) -> DataTask:
    """A task with the public data, for its questions."""
    task = get_task(name, data=str(path))
    if not isinstance(task, DataTask):
        raise TypeError(name)
    return task


def with_rows(task: DataTask) -> Iterable[tuple[Question, dict[str, Any]]]:
    """Each question with the row it was made of."""
    rows = read_rows(task.settings.source, task.task_file)
    return zip(task.all_questions, (dict(row.values) for row in rows), strict=True)


def graded(name: str, answers: list[MathAnswer]) -> dict[str, Any]:
    """How many verdicts are the known ones, and which are not."""
    start = time.perf_counter()
    with open_task(name, allow_code_execution=True) as task, ThreadPoolExecutor(cores()) as threads:
        verdicts = list(threads.map(partial(_judge, task), answers))
    wrong = [
        {"question": question.question_id, "answer": text[-200:], "known": known, "reason": reason}
        for (question, text, known), (score, reason) in zip(answers, verdicts, strict=True)
        if (score == 1) != known
    ]
    return {
        "answers": len(answers),
        "known_right": sum(known for *_, known in answers),
        "graded_right": len(answers) - len(wrong),
        "share": 1 - len(wrong) / len(answers),
        "wall_s": time.perf_counter() - start,
        "wrong": wrong,
    }


def _judge(task: CodeTask | DataTask, answer: MathAnswer) -> tuple[float, str]:
    verdict = task.judge(answer[0], answer[1])
    return verdict.score, verdict.reason


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def main() -> None:
    """Print the shares, or everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    data = args.data or default_data()
    parts = {
        name: graded(task, make(data))
        for name, (task, make) in PARTS.items()
        if not args.only or name in args.only
    }
    columns = ["answers", "known_right", "graded_right", "share", "wall_s"]
    rows = [[name, *(part[column] for column in columns)] for name, part in parts.items()]
    wrong = [f"{each['question']}: {each}" for part in parts.values() for each in part["wrong"]]
    summary = {"parts": parts, "cores": cores()}
    Output(as_json=args.json).result(summary, table(["part", *columns], rows), *wrong)


if __name__ == "__main__":
    run(main)

"""Grading a file of answers."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from chimera_train.errors import ConfigError, DataError
from chimera_train.output import Output
from chimera_train.tasks.data_task import DataTask
from chimera_train.tasks.model import Question, Task, Verdict
from chimera_train.tasks.rows import read_json_lines

__all__ = ["Graded", "GradedAnswer", "as_json_lines", "grade_file"]

_THREADS = 8


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """The verdict on one answer."""

    question_id: str
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class Graded:
    """The verdicts on a file of answers, in its order."""

    verdicts: Sequence[GradedAnswer]

    def summary(self) -> dict[str, Any]:
        """``answers``, ``questions``, ``mean_score`` and how often each reason of failure stood."""
        reasons = Counter(each.reason.partition(":")[0][:60] or "correct" for each in self.verdicts)
        return {
            "answers": len(self.verdicts),
            "questions": len({each.question_id for each in self.verdicts}),
            "mean_score": sum(each.score for each in self.verdicts) / len(self.verdicts),
            "reasons": dict(reasons.most_common(20)),
        }


def grade_file(task: Task, path: Path, output: Output) -> Graded:
    """Grade JSON lines of ``question_id`` and ``text`` (or ``answer``); several a question count.

    Raises:
        ConfigError: the task has no list of questions to which a file can refer.
        DataError: the file is missing, malformed or empty, or answers a question of another task.
    """
    if not isinstance(task, DataTask):
        raise ConfigError(f"Task {task.name!r} makes its questions: a file cannot refer to them.")
    questions = {question.question_id: question for question in task.all_questions}
    answers = [_answer(where, row, questions, task) for where, row in read_json_lines(path)]
    if not answers:
        raise DataError(f"{path} holds no answers.")
    with output.progress() as progress, ThreadPoolExecutor(_THREADS) as threads:
        line = progress.add_task(task.name, total=len(answers), note="")

        def judge(pair: tuple[Question, str]) -> Verdict:
            verdict = task.judge(*pair)
            progress.update(line, advance=1)
            return verdict

        verdicts = list(threads.map(judge, answers))
    return Graded(
        [
            GradedAnswer(question.question_id, verdict.score, verdict.reason)
            for (question, _), verdict in zip(answers, verdicts, strict=True)
        ]
    )


def as_json_lines(verdicts: Iterable[GradedAnswer]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(asdict(verdict)) + "\n" for verdict in verdicts)


def _answer(
    where: str, row: Any, questions: dict[str, Question], task: DataTask
) -> tuple[Question, str]:
    text = row.get("text", row.get("answer"))
    if "question_id" not in row or not isinstance(text, str):
        raise DataError(f"{where} needs 'question_id' and 'text', the model's whole output.")
    question = questions.get(str(row["question_id"]))
    if question is None:
        example = next(iter(questions))
        raise DataError(
            f"{where}: task '{task.name}' has no question '{row['question_id']}' (its ids look like"
            f" '{example}'): grade the answers with the task and data they were made for."
        )
    return question, text

"""Judging mathematical answers by equality of what they say."""

import logging
import re

from chimera_train.tasks.math_answers import (
    LONGEST,
    denies,
    final_answer,
    is_words,
    normalised,
    readings,
    without_base,
)
from chimera_train.tasks.math_pool import VerifyPool
from chimera_train.tasks.model import Question, Verdict
from chimera_train.tasks.rows import Row
from chimera_train.tasks.settings import MathSettings

__all__ = ["MathGrader"]

_log = logging.getLogger(__name__)


class MathGrader:
    """Compares the last answer of a text with the gold one, through math-verify where needed."""

    def __init__(self, settings: MathSettings, pool: VerifyPool | None = None) -> None:
        self._fields = settings.fields
        self._pool = pool or VerifyPool()

    def read(self, row: Row) -> tuple[str, str]:
        """A question's text and its gold answer.

        Raises:
            DataError: the row has none.
        """
        gold = row.text(self._fields.answer, "answer").strip()
        if "\\boxed" in gold or "####" in gold:
            gold = final_answer(gold) or ""
        if not gold:
            raise row.wrong("answer", "holds no answer")
        return row.text(self._fields.question, "question").strip(), gold

    def judge(self, question: Question, text: str) -> Verdict:
        """1 for an equal answer, else 0; an answer that cannot be compared in time is wrong."""
        answer = final_answer(text)
        if answer is None:
            return Verdict(0.0, "no answer: neither \\boxed{} nor 'answer is'")
        if len(answer) > LONGEST:
            return Verdict(0.0, "the answer is too long")
        gold, found = normalised(question.answer), normalised(answer)
        pairs = readings(gold, found)
        texts = [*pairs, (without_base(gold), found)]
        if any(_plain(one) == _plain(other) for one, other in texts):
            return Verdict(1.0)
        is_denial = denies(found) and re.fullmatch(r"[-\d./{}\\frac ]+", gold) is not None
        if not is_words(gold) and not is_words(found) and not is_denial:
            equal = self._pool.equal(pairs)
            if equal:
                return Verdict(1.0)
            if equal is None:
                _log.warning(
                    "an answer to %s could not be compared in time and counts as wrong: %s",
                    question.question_id,
                    found[:100],
                )
                return Verdict(0.0, f"could not be compared in time: {found[:100]}")
        return Verdict(0.0, f"wrong: answered {found[:100]}")

    def close(self) -> None:
        """End the processes that compare."""
        self._pool.close()


def _plain(answer: str) -> str:
    return answer.replace(" ", "").casefold()

"""Judging answers by their text."""

from chimera_train.tasks.model import Question, Verdict
from chimera_train.tasks.rows import Row
from chimera_train.tasks.settings import TextSettings

__all__ = ["TextGrader"]


class TextGrader:
    """Compares whole answers without regard to case, spaces and a final full stop."""

    def __init__(self, settings: TextSettings) -> None:
        self._fields = settings.fields

    def read(self, row: Row) -> tuple[str, str]:
        """A question's text and its gold answer.

        Raises:
            DataError: the row has none.
        """
        question = row.text(self._fields.question, "question").strip()
        return question, row.text(self._fields.answer, "answer").strip()

    def judge(self, question: Question, text: str) -> Verdict:
        """1 for the same text, else 0."""
        if _plain(text) == _plain(question.answer):
            return Verdict(1.0)
        return Verdict(0.0, f"wrong: answered {' '.join(text.split())[:100]}")

    def close(self) -> None:
        """Nothing is held between answers."""


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()

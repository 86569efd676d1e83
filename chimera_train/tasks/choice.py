"""Judging answers to multiple choice questions by the letter that they choose."""

import re
from string import ascii_uppercase

from chimera_train.tasks.model import Question, Verdict
from chimera_train.tasks.rows import Row
from chimera_train.tasks.settings import ChoiceSettings

__all__ = ["ChoiceGrader", "chosen_letter"]

_LETTER = r"(?:\\(?:text|mathrm|boxed|textbf)\s*\{|[\s*_$({\[\"']){0,40}([A-Z])(?![A-Za-z'’])"
# From the surest sign of a choice to the weakest; in each the last one of the text counts.
_SIGNS = [
    re.compile(r"\\boxed\s*\{" + _LETTER),
    re.compile(
        r"(?i:\b(?:answer|choice|option)\b[^\n.]{0,40}?(?:\bis\b|\bwould be\b|[:=]))"
        r"(?i:\s*(?:option|choice|answer|letter)\b)?" + _LETTER
    ),
    re.compile(r"(?i:\b(?:answer|choose|select|pick|option|choice)\b)" + _LETTER),
]
_LAST_LINE = re.compile(r"^[\s*_(\[\"']*([A-Z])(?:[\s*_)\].:\"']|$)")


def chosen_letter(text: str) -> str | None:
    r"""The letter that a text settles on; None if it names none.

    In order: ``\boxed{C}``, "the answer is (C)", "answer C" or "option C", and a last line that
    begins with the letter, such as "C." or "**C**".
    """
    for sign in _SIGNS:
        found = sign.findall(text)
        if found:
            return str(found[-1])
    lines = [line for line in text.splitlines() if line.strip()]
    last = _LAST_LINE.match(lines[-1]) if lines else None
    # "A train …" and "I think …" are sentences, unless punctuation sets the letter apart.
    if last and (last[1] not in "AI" or not re.match(r"[\s*_]*[AI]\s+\w", lines[-1])):
        return last[1]
    return None


class ChoiceGrader:
    """Compares the chosen letter with the gold one."""

    def __init__(self, settings: ChoiceSettings) -> None:
        self._fields = settings.fields

    def read(self, row: Row) -> tuple[str, str]:
        """A question with its options by letter, and the letter of the right one.

        Raises:
            DataError: a field is missing, or the answer is none of the options.
        """
        options = row.need(self._fields.options, "options")
        if not isinstance(options, list) or not 1 < len(options) <= len(ascii_uppercase):
            raise row.wrong("options", f"must be a list of 2 to {len(ascii_uppercase)} texts")
        letters = ascii_uppercase[: len(options)]
        answer = row.need(self._fields.answer, "answer")
        if isinstance(answer, int) and 0 <= answer < len(options):
            answer = letters[answer]
        elif answer not in list(letters) and answer in options:
            answer = letters[options.index(answer)]
        if not isinstance(answer, str) or len(answer) != 1 or answer not in letters:
            raise row.wrong("answer", f"must be one of {letters}, a number from 0, or an option")
        lines = [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]
        text = row.text(self._fields.question, "question").strip()
        return "\n".join([text, *lines]), answer

    def judge(self, question: Question, text: str) -> Verdict:
        """1 for the right letter, else 0."""
        letter = chosen_letter(text)
        if letter == question.answer:
            return Verdict(1.0)
        return Verdict(0.0, "no letter" if letter is None else f"wrong: answered {letter}")

    def close(self) -> None:
        """Nothing is held between answers."""

"""Cheap numbers that tell what kind of text a prompt is: how much of it is digits, code, options.

They are counted over the whole text and over its stem: what comes before the first answer option
or blank line, which is where a question with options, or with a history behind it, is put.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["TERM", "TEXT_COLUMNS", "TEXT_VERSION", "terms_of", "text_columns"]

#: Raised whenever a term or a column changes its meaning, for data sets keep them (``--no-text``).
TEXT_VERSION = 1

#: A word of a text, after lower-casing. Unlike scikit-learn's default it keeps words of one
#: character: in arithmetic the digits are the content.
TERM = re.compile(r"\w+")

_CLASSES = {
    "digits": "0123456789",
    "upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "operators": "+-*/=^<>%$\\",
    "brackets": "(){}[];:_",
    "sentences": ".!?",
    "questions": "?",
    "commas": ",",
    "newlines": "\n",
}
_COUNTED = ("characters", *_CLASSES, "words", "distinct_words", "numbers", "distinct_numbers")
_LINES = ("lines", "longest_line", "mean_line", "first_line", "last_line", "shortest_line")
_OPTIONS = ("options", "numeric_options", "mean_option", "option_deviation")
TEXT_COLUMNS = (
    *(f"text_{name}" for name in _COUNTED),
    *(f"stem_{name}" for name in _COUNTED),
    *_LINES,
    *_OPTIONS,
    "largest_number",
)

_OPTION = re.compile(r"^\(?[A-J][.)] ", re.MULTILINE)
_STEM_END = re.compile(r"^\(?[A-J][.)] |\n\s*\n", re.MULTILINE)
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(r"[0-9]+(?:,[0-9]{3})*")
_MOST_DIGITS = 15  # longer ones are identifiers, and must stay finite

_IS_IN = np.zeros((256, len(_CLASSES)), dtype=np.int64)
for _column, _characters in enumerate(_CLASSES.values()):
    _IS_IN[list(_characters.encode()), _column] = 1


@lru_cache(maxsize=2)
def terms_of(text: str) -> Sequence[str]:
    """The terms of a text, in order; kept for the other who looks at the same text."""
    return TERM.findall(text.lower())


def text_columns(text: str) -> npt.NDArray[np.float32]:
    """The values of ``TEXT_COLUMNS``, all finite."""
    end = _STEM_END.search(text, len(text) - len(text.lstrip()))
    whole = _counted(text, terms_of(text))
    stem = whole
    if end:
        start = text[: end.start()]
        stem = _counted(start, TERM.findall(start.lower()))
    lines = [line for line in text.split("\n") if line.strip()]
    values = [*whole, *stem, *_lengths(lines), *_options(lines), _largest_number(text)]
    return np.array(values, dtype=np.float32)


def _counted(text: str, terms: Sequence[str]) -> list[float]:
    encoded = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
    classes = np.bincount(encoded, minlength=256) @ _IS_IN
    numbers = list(filter(str.isdigit, terms))
    counts = map(len, (terms, set(terms), numbers, set(numbers)))
    return [len(text), *classes.tolist(), *counts]


def _lengths(lines: Sequence[str]) -> list[float]:
    if not lines:
        return [0.0] * len(_LINES)
    lengths = list(map(len, lines))
    mean = sum(lengths) / len(lengths)
    return [len(lengths), max(lengths), mean, lengths[0], lengths[-1], min(lengths)]


def _options(lines: Sequence[str]) -> list[float]:
    options = [line[3:] for line in lines if _OPTION.match(line)]
    if not options:
        return [0.0] * len(_OPTIONS)
    n, lengths = len(options), list(map(len, options))
    numeric = sum(1 for option in options if _DIGIT.search(option)) / n
    mean = sum(lengths) / n
    # Not NumPy's, which takes longer than all the rest here.
    deviation = math.sqrt(sum((length - mean) ** 2 for length in lengths) / n)
    return [n, numeric, mean, deviation]


def _largest_number(text: str) -> float:
    numbers = (number.replace(",", "") for number in _NUMBER.findall(text))
    return max((float(number) for number in numbers if len(number) <= _MOST_DIGITS), default=0.0)

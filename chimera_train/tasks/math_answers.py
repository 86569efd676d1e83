r"""The answer that a text ends in, and the form in which answers are compared.

What is normalised here is what would otherwise depend on the version of the LaTeX grammar under
math-verify: with antlr 4.9.3, which DVC needs, ``10\%`` is 10 and not a tenth.
"""

import re

__all__ = [
    "LONGEST", "denies", "final_answer", "is_words", "normalised", "readings", "without_base",
]  # fmt: skip

LONGEST = 2000  # characters of an answer; a text that runs away must not take long to read
_TRIED = 20  # boxes, from the last one, until one is closed and not empty

_MARKER = re.compile(r"\banswer\b[^\n.]{0,60}?(?:\bis\b|\bwas\b|[:=])[\s:]*", re.IGNORECASE)
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*")
_SENTENCE_END = re.compile(r"[.!]?(?:\s*\n|\s+(?=[A-Z]\w* )|\Z)")

_SPACING = re.compile(
    r"(?<!\\)\\(?:[!,;:> ]|q?quad\b|(?:left|right|[bB]ig[glr]*|displaystyle)\b)|~"
)
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox|hbox)\s*\{([^{}]*)\}")
_LETTER = re.compile(r"^\\text\s*\{\s*\(?([A-Z])\)?\s*\}\.?$|^\(([A-Z])\)$")
_AND = re.compile(r"\\(?:text|mbox)\s*\{\s*(?:and|or)\s*\}|(?<=[\d}]) (?:and|or) (?=\S)")
_DEGREES = re.compile(r"\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ)|\\degrees?\b|°)")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,|\{,\})\d{3})+(?!,?\d)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{?(\d+)\}?")
_NUMBER = r"[-+]?(?:\d[\d./]*|\.\d+|\\frac\s*(?:\{[^{}]*\}|\d)\s*(?:\{[^{}]*\}|\d))"
# A word behind a number; two letters side by side may also be a product, as in 3xy.
_WORD = r"(?:\s+[a-zA-Z]{3,}|\s*(?:[cmk]m|kg|ft|in|oz|lb|mph|[a-zA-Z]{5,}))"
_UNIT = re.compile(rf"^({_NUMBER}){_WORD}\b[a-zA-Z\s./^{{}}\d-]*$")
_UNIT_TEXT = re.compile(
    r"(?<=[\d}])\s*\\(?:text|mathrm|mbox)\s*\{[^{}]*[a-zA-Z][^{}]*\}(?:\s*\^\s*\{?\d\}?)?$"
)
_NO_UNIT = re.compile(r"\b(?:pi|sqrt|sin|cos|tan|log|ln|mod|or|and|to)\b")
_WORDS = re.compile(r"[A-Za-z][A-Za-z\s,.'()-]*\d*")
_DENIAL = re.compile(r"\\(?:not|neq?|neg|lnot)(?![a-zA-Z])|≠")
_BASE = re.compile(r"([0-9A-Z]+)_(\d+)")


def final_answer(text: str) -> str | None:
    r"""The last ``\boxed{}`` of a text, else what follows the last ``####`` or "answer is"."""
    for match in list(_BOXED.finditer(text))[: -_TRIED - 1 : -1]:
        content = _argument(text, match.end())
        if content and content.strip():
            return content.strip()
    _, mark, tail = text.rpartition("####")
    if mark:
        return tail.strip().partition("\n")[0].strip() or None
    markers = list(_MARKER.finditer(text))
    if not markers:
        return None
    tail = text[markers[-1].end() :].lstrip()[:LONGEST]
    if formula := re.match(r"\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", tail, re.DOTALL):
        return next(part for part in formula.groups() if part).strip()
    end = _SENTENCE_END.search(tail)
    return (tail[: end.start()] if end else tail).strip(" *`\n") or None


def _argument(text: str, start: int) -> str | None:
    """What stands in the braces that open at ``start``, or the one token there."""
    if text[start : start + 1] != "{":
        token = re.compile(r"[^\s$.,]+").match(text, start)
        return token[0] if token else None
    depth = 0
    for end in range(start, min(len(text), start + LONGEST)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + 1 : end]
    return None


def normalised(answer: str) -> str:
    """An answer without what has no mathematical meaning: spacing, units, signs of money."""
    answer = answer.strip().strip("*`").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if answer.startswith(opening) and answer.endswith(closing) and len(answer) > len(opening):
            answer = answer[len(opening) : -len(closing)]
    answer = _SPACING.sub(" ", answer).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    answer = answer.replace("\\cfrac", "\\frac").replace("−", "-").replace("\\$", "")
    answer = _LETTER.sub(r"\1\2", answer.strip())
    answer = _AND.sub(",", answer)
    answer = _UNIT_TEXT.sub("", answer)
    answer = _TEXT.sub(lambda match: f" {match[1].strip()} ", answer).strip()
    answer = _DEGREES.sub("", answer)
    answer = _THOUSANDS.sub(lambda match: re.sub(r"[{},]", "", match[0]), answer)
    answer = _REPEATING.sub(_as_fraction, answer).lstrip("$").strip().rstrip(".").strip()
    answer = re.sub(r"_\s*\{\s*(\w+)\s*\}", r"_\1", answer)
    unit = _UNIT.match(answer)
    if unit and not _NO_UNIT.search(answer):
        answer = unit[1]
    return re.sub(r"\s+", " ", answer).strip()


def _as_fraction(match: re.Match[str]) -> str:
    whole, fixed, repeated = match[1] or "0", match[2], match[3]
    numerator = int(whole + fixed + repeated) - int(whole + fixed)
    return f"\\frac{{{numerator}}}{{{int('9' * len(repeated)) * 10 ** len(fixed)}}}"


def readings(gold: str, answer: str) -> list[tuple[str, str]]:
    """Pairs of which one must be equal: 10 % is 10 where percent were asked for, else 10/100."""
    first, second = _without_percent(gold), _without_percent(answer)
    pairs = [(first, second)]
    if first != gold and second == answer:
        pairs.append((f"\\frac{{{first}}}{{100}}", second))
    if first == gold and second != answer:
        pairs.append((first, f"\\frac{{{second}}}{{100}}"))
    return pairs


def _without_percent(answer: str) -> str:
    return re.sub(r"\s*\\?%|\s*\bpercent\b", "", answer).strip()


def denies(answer: str) -> bool:
    """Whether an answer says what something is not, which math-verify may read as what it is."""
    return bool(_DENIAL.search(answer))


def without_base(answer: str) -> str:
    """The digits of a number that is written with its base, ``2516_8``."""
    number = _BASE.fullmatch(answer.replace(" ", ""))
    return number[1] if number else answer


def is_words(answer: str) -> bool:
    """Whether an answer is text: a name, a date, a time of day, digits with a base."""
    if re.search(r"\d:\d", answer) or without_base(answer) != answer:
        return True
    return bool(_WORDS.fullmatch(answer) and re.search(r"[A-Za-z]{3}", answer))

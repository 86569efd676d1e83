"""Arithmetic word problems whose difficulty is the number of steps, made from a seed.

A problem is a chain: a start and one to five operations on a running total that stays within
0..99. The sentences that tell it vary in names, things, verbs and order, and a minority of the
problems also hold a number that does not matter. The vocabulary is small and closed, so that
models of a few hundred thousand parameters can learn to solve most of them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from chimera_train.errors import ConfigError
from chimera_train.tasks.model import Question

__all__ = ["MAX_STEPS", "NAME", "Operation", "generate", "grade", "operations"]

NAME = "arithmetic"
MAX_STEPS = 5
LARGEST_TOTAL = 99

_DISTRACTOR_SHARE = 0.25
_ATTEMPTS_PER_QUESTION = 1000

_PEOPLE = (
    ("Tom", "he", "him", "his"),
    ("Ben", "he", "him", "his"),
    ("Leo", "he", "him", "his"),
    ("Sam", "he", "him", "his"),
    ("Anna", "she", "her", "her"),
    ("Mia", "she", "her", "her"),
    ("Eva", "she", "her", "her"),
    ("Zoe", "she", "her", "her"),
)
_THINGS = ("apples", "books", "cards", "coins", "pens", "shells", "stamps", "stones")

# {P} name, {s} pronoun as subject, {o} as object, {h} possessive, {O} another person, {D} another
# person with the other pronoun, {n} number, {t} the counted things, {u} other things.
_START = (
    "{P} has {n} {t}.",
    "{P} starts with {n} {t}.",
    "At first {P} has {n} {t}.",
    "In the morning {P} has {n} {t}.",
    "{P} has a box with {n} {t}.",
)
_ADD = (
    "{s} buys {n} more",
    "{s} buys {n} {t}",
    "{s} finds {n} more",
    "{s} finds {n} {t}",
    "{s} wins {n} {t}",
    "{s} gets {n} more from {O}",
    "{s} gets {n} {t}",
    "{O} gives {o} {n} {t}",
    "{O} gives {P} {n} more",
    "{O} brings {o} {n} {t}",
)
_SUBTRACT = (
    "{s} loses {n}",
    "{s} loses {n} {t}",
    "{s} sells {n} of the {t}",
    "{s} sells {n} {t}",
    "{s} gives {n} {t} to {O}",
    "{s} gives {O} {n} of the {t}",
    "{s} leaves {n} {t} at school",
    "{O} takes {n} of the {t}",
    "{O} takes {n} {t} from {o}",
    "{s} drops {n} {t}",
)
_DOUBLE = (
    "{s} doubles {h} {t}",
    "the number of {t} doubles",
    "{s} ends up with 2 times as many",
)
_TRIPLE = (
    "{s} triples {h} {t}",
    "the number of {t} triples",
    "{s} ends up with 3 times as many",
)
_DISTRACTOR = (
    "{D} has {n} {u}.",
    "{D} is {n} years old.",
    "{P} is {n} years old.",
    "{D} buys {n} {u}.",
)
_ASK_LAST = (
    "How many {t} does {P} have now?",
    "How many {t} does {P} have at the end?",
    "How many {t} are left?",
    "Find the number of {t} that {P} has now.",
)
_ASK_FIRST = (
    "How many {t} does {P} have at the end?",
    "Find the number of {t} that {P} has at the end.",
)
_OPENERS = ("", "", "", "Then ", "Later ", "Soon ", "After that ")


@dataclass(frozen=True, slots=True)
class Operation:
    """One step on the running total: ``symbol`` is ``+``, ``-`` or ``*``."""

    symbol: str
    operand: int

    def apply(self, total: int) -> int:
        """The running total after this step."""
        if self.symbol == "+":
            return total + self.operand
        if self.symbol == "-":
            return total - self.operand
        return total * self.operand


def generate(n: int, seed: int) -> list[Question]:
    """Return ``n`` questions with distinct texts; equal arguments give equal questions.

    The steps go round 1..5, so that every difficulty has the same share to within one question.
    A longer list starts with the questions of a shorter one of the same seed.

    Raises:
        ConfigError: ``n`` is negative, or more distinct questions than the wording can give.
    """
    if n < 0:
        raise ConfigError(f"the number of questions must not be negative, got {n}")
    rng = random.Random(f"{NAME}-{seed}")
    seen: set[str] = set()
    questions: list[Question] = []
    order = list(range(1, MAX_STEPS + 1))
    for index in range(n):
        # A shuffled round keeps any prefix balanced without making the steps a function of the id.
        if index % MAX_STEPS == 0:
            rng.shuffle(order)
        steps = order[index % MAX_STEPS]
        for _ in range(_ATTEMPTS_PER_QUESTION):
            question = _question(f"{NAME}-{seed}-{index}", steps, rng)
            if question.text not in seen:
                break
        else:
            raise ConfigError(f"cannot make {n} distinct {NAME} questions")
        seen.add(question.text)
        questions.append(question)
    return questions


def operations(question: Question) -> tuple[int, list[Operation]]:
    """Return the start and the operations behind a generated question.

    Raises:
        ConfigError: the question was not made by :func:`generate`.
    """
    chain = str(question.metadata.get("chain", ""))
    if not re.fullmatch(r"\d+( [-+*]\d+)+", chain, flags=re.ASCII):
        raise ConfigError(f"question {question.question_id!r} holds no chain of operations")
    start, *rest = chain.split(" ")
    return int(start), [Operation(part[0], int(part[1:])) for part in rest]


_MARKER = re.compile(r"answer", flags=re.IGNORECASE)
_INTEGER = re.compile(r"(?<![\d.,])-?\d+(?:,\d{3})*(?![.,]?\d)", flags=re.ASCII)


def grade(question: Question, answer: str) -> float:
    """Return 1.0 when the model's text gives the gold answer, else 0.0; never raises.

    Judged is the last integer after the last word "answer" of the text. Numbers are compared as
    digit strings: a hostile text may hold more digits than Python is willing to convert.
    """
    tail_start = -1
    for marker in _MARKER.finditer(answer):
        tail_start = marker.end()
    if tail_start < 0:
        return 0.0
    found = _INTEGER.findall(answer, tail_start)
    if not found:
        return 0.0
    return 1.0 if _canonical(found[-1]) == _canonical(question.answer) else 0.0


def _canonical(number: str) -> str:
    """The digits without thousands separators and leading zeros, with the sign unless zero."""
    number = number.strip().replace(",", "")
    sign = "-" if number.startswith("-") else ""
    digits = number.lstrip("-").lstrip("0") or "0"
    return digits if digits == "0" else sign + digits


def _question(question_id: str, steps: int, rng: random.Random) -> Question:
    start = rng.randint(2, 30)
    chain: list[Operation] = []
    total = start
    for _ in range(steps):
        operation = _operation(total, chain, rng)
        total = operation.apply(total)
        chain.append(operation)
    distractors = int(rng.random() < _DISTRACTOR_SHARE)
    return Question(
        question_id=question_id,
        task=NAME,
        text=_tell(start, chain, distractors, rng),
        answer=str(total),
        metadata={
            "steps": steps,
            "distractors": distractors,
            "chain": " ".join([str(start), *(f"{op.symbol}{op.operand}" for op in chain)]),
        },
    )


def _operation(total: int, before: Sequence[Operation], rng: random.Random) -> Operation:
    """Draw a step that keeps the total within 0..99; operands below 2 would break the plurals."""
    while True:
        kind = rng.choices(("+", "-", "*"), weights=(4, 4, 2))[0]
        if kind == "*":
            operation = Operation("*", rng.choice((2, 2, 3)))
            if total < 2 or (before and before[-1].symbol == "*"):
                continue
        else:
            operation = Operation(kind, rng.randint(2, rng.choice((9, 20))))
        if 0 <= operation.apply(total) <= LARGEST_TOTAL:
            return operation


def _tell(start: int, chain: Sequence[Operation], distractors: int, rng: random.Random) -> str:
    name, subject, object_, possessive = rng.choice(_PEOPLE)
    thing, other_thing = rng.sample(_THINGS, 2)

    def fill(template: str, number: int = 0) -> str:
        other = rng.choice([person[0] for person in _PEOPLE if person[0] != name])
        # "he" must not be able to mean the person of the sentence that does not matter.
        stranger = rng.choice([person[0] for person in _PEOPLE if person[1] != subject])
        return template.format(
            P=name,
            s=subject,
            o=object_,
            h=possessive,
            O=other,
            D=stranger,
            n=number,
            t=thing,
            u=other_thing,
        )

    sentences = [fill(rng.choice(_START), start)]
    index = 0
    while index < len(chain):
        clause = fill(_clause(chain[index], rng), chain[index].operand)
        index += 1
        # Two steps in one sentence: the number of sentences must not give the difficulty away.
        if index < len(chain) and rng.random() < 0.2:
            clause += " and " + fill(_clause(chain[index], rng), chain[index].operand)
            index += 1
        sentence = rng.choice(_OPENERS) + clause
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    for _ in range(distractors):
        text = fill(rng.choice(_DISTRACTOR), rng.randint(2, 20))
        sentences.insert(rng.randint(1, len(sentences)), text)
    if rng.random() < 0.2:
        sentences.insert(0, fill(rng.choice(_ASK_FIRST)))
    else:
        sentences.append(fill(rng.choice(_ASK_LAST)))
    return " ".join(sentences)


def _clause(operation: Operation, rng: random.Random) -> str:
    if operation.symbol == "+":
        return rng.choice(_ADD)
    if operation.symbol == "-":
        return rng.choice(_SUBTRACT)
    return rng.choice(_DOUBLE if operation.operand == 2 else _TRIPLE)


def vocabulary() -> list[str]:
    """Every word that a question can hold, sorted; numbers are left out."""
    texts = [*_START, *_DISTRACTOR, *_ASK_LAST, *_ASK_FIRST, *_OPENERS, *_THINGS]
    for clause in (*_ADD, *_SUBTRACT, *_DOUBLE, *_TRIPLE):
        texts += [clause, clause[0].upper() + clause[1:]]
    for person in _PEOPLE:
        texts += [*person, person[1].capitalize()]
    words = {"and"}
    for text in texts:
        words.update(re.findall(r"[A-Za-z]+", re.sub(r"\{\w\}", " ", text)))
    return sorted(words)

"""What the pocket models are taught: chats exactly as the math workflow makes them.

Every chat is a system text, a user text rendered from ``workflows/math.yaml``, and the assistant
text that the model has to learn. The proposals that a verifier sees are right half of the time and
hold the mistakes that small models make the other half; the reviews that a reviser sees are all
rejections, as in the workflow, and some of them are wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chimera_train.tasks.arithmetic import MAX_STEPS, Operation, operations
from chimera_train.tasks.model import Question
from chimera_train.workflows.model import Workflow, load_workflow, render

MISTAKE_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Chat:
    """One training example; ``assistant`` is the only part with a loss."""

    system: str
    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Step:
    """``before`` operation = ``after``; ``units`` and ``tens`` are the column results as written.

    ``tens`` is None when one column is enough.
    """

    before: int
    operation: Operation
    after: int
    units: int
    tens: int | None


def make_step(before: int, operation: Operation, slip: int = 0) -> Step:
    """Do one step by columns; ``slip`` (0, +-1 in the units, +-10 in the tens) is a mistake."""
    symbol, operand = operation.symbol, operation.operand
    tens_slip = slip // 10 if slip % 10 == 0 else 0
    units_slip = slip - 10 * tens_slip
    unit, ten = before % 10, before // 10
    if symbol == "*":
        units = operand * unit + units_slip
        carry = units // 10
        tens = operand * ten + carry + tens_slip
        single = ten == 0
    elif symbol == "+":
        units = unit + operand % 10 + units_slip
        carry = units // 10
        tens = ten + operand // 10 + carry + tens_slip
        single = ten == 0 and operand < 10
    else:
        borrow = int(unit < operand % 10)
        units = unit + 10 * borrow - operand % 10 + units_slip
        tens = ten - operand // 10 - borrow + tens_slip
        single = ten == 0 and operand < 10
    if single:
        return Step(before, operation, units, units, None)
    return Step(before, operation, tens * 10 + units % 10, units, tens)


def work(start: int, chain: Sequence[Operation], slips: Sequence[int] = ()) -> list[Step] | None:
    """All steps of a chain, or None when mistakes lead out of 0..99."""
    steps: list[Step] = []
    total = start
    for index, operation in enumerate(chain):
        step = make_step(total, operation, slips[index] if index < len(slips) else 0)
        total = step.after
        if not 0 <= total <= 99 or not 0 <= step.units <= 29 or (step.tens or 0) < 0:
            return None
        steps.append(step)
    return steps


def write_terse(_start: int, steps: Sequence[Step]) -> str:
    """Only the equations, which hold the start already."""
    return " ".join(
        f"{step.before} {step.operation.symbol} {step.operation.operand} = {step.after}."
        for step in steps
    )


_VERBS = {"+": "add", "-": "take", "*": "times"}


def write_plain(start: int, steps: Sequence[Step]) -> str:
    """What happens, then its equation."""
    parts = [f"start {start}."]
    for step in steps:
        symbol, operand = step.operation.symbol, step.operation.operand
        parts.append(
            f"{_VERBS[symbol]} {operand}: {step.before} {symbol} {operand} = {step.after}."
        )
    return " ".join(parts)


def write_digits(start: int, steps: Sequence[Step]) -> str:
    """What happens, then its columns, units first."""
    parts = [f"start {start}."]
    for step in steps:
        symbol, operand = step.operation.symbol, step.operation.operand
        unit, ten = step.before % 10, step.before // 10
        if symbol == "*":
            columns = f"{operand} * {unit} = {step.units}"
            if step.tens is not None:
                columns += f", {operand} * {ten} + {step.units // 10} = {step.tens}"
        elif symbol == "+":
            columns = f"{unit} + {operand % 10} = {step.units}"
            if step.tens is not None:
                columns += f", {ten} + {operand // 10} + {step.units // 10} = {step.tens}"
        else:
            borrow = int(unit < operand % 10) if step.tens is not None else 0
            columns = f"{unit + 10 * borrow} - {operand % 10} = {step.units}"
            if step.tens is not None:
                columns += f", {ten} - {operand // 10} - {borrow} = {step.tens}"
        parts.append(f"{_VERBS[symbol]} {operand}: {columns}, so {step.after}.")
    return " ".join(parts)


Writer = Callable[[int, Sequence[Step]], str]
WRITERS: dict[str, Writer] = {
    "terse": write_terse,
    "plain": write_plain,
    "digits": write_digits,
}


def working_vocabulary() -> list[str]:
    """The words that workings, verdicts and prompts add to those of the questions."""
    words = {"start", "so", "answer", "accept", "reject", "Solution", "Review", *_VERBS.values()}
    for stage in load_workflow("math").stages:
        words.update(stage.system.replace(",", " ").replace(".", " ").split())
    return sorted(words)


class Teacher:
    """Turns questions into chats in one style of writing.

    ``mix`` gives the shares of solve, verify and revise chats, ``misreadings`` the share of
    mistakes that come from reading the problem: a number of another sentence, a step twice or in
    the wrong place. Those are what small models mostly get wrong; the rest are mixed. With
    ``compare`` a review names both answers before its verdict.
    """

    def __init__(
        self,
        style: str,
        mix: tuple[float, float, float],
        seed: int,
        misreadings: float = 0.0,
        compare: bool = False,
    ) -> None:
        self._write = WRITERS[style]
        self._mix = mix
        self._misreadings = misreadings
        self._compare = compare
        self._rng = random.Random(f"pocket-chats-{seed}")
        self._workflow: Workflow = load_workflow("math")

    def chat(self, question: Question, stage: str | None = None) -> Chat:
        """One chat about ``question``, for ``stage`` or for one drawn from the mix."""
        rng = self._rng
        if stage is None:
            stage = rng.choices(("solve", "verify", "revise"), weights=self._mix)[0]
        start, chain = operations(question)
        steps = work(start, chain)
        if steps is None:
            raise ValueError(f"question {question.question_id} leaves the range 0..99")
        right = self._write(start, steps)
        if stage == "solve":
            values = {"question": question.text}
            return self._chat("solve", values, f"{right} answer {question.answer}")
        wrong_start, wrong_steps = self._mistaken(question, start, chain)
        wrong = self._write(wrong_start, wrong_steps)
        wrong_answer = str(wrong_steps[-1].after if wrong_steps else wrong_start)
        right_solution = f"{right} answer {question.answer}"
        wrong_solution = f"{wrong} answer {wrong_answer}"
        if stage == "verify":
            given, solution = question.answer, right_solution
            if rng.random() >= 0.5:
                given, solution = wrong_answer, wrong_solution
            values = {"question": question.text, "solve": solution}
            return self._chat("verify", values, self._review(right, given, question.answer))
        if rng.random() < 0.7:
            proposal = wrong_solution
            review = self._review(right, wrong_answer, question.answer)
        else:
            given, proposal = question.answer, right_solution
            if rng.random() < 0.5:
                other_start, other_steps = self._mistaken(question, start, chain)
                given = str(other_steps[-1].after if other_steps else other_start)
                proposal = f"{self._write(other_start, other_steps)} answer {given}"
            review = self._review(wrong, given, wrong_answer, "reject")
        values = {"question": question.text, "solve": proposal, "verify": review}
        return self._chat("revise", values, f"{right} answer {question.answer}")

    def _review(self, working: str, given: str, found: str, verdict: str | None = None) -> str:
        verdict = verdict or ("accept" if given == found else "reject")
        if self._compare:
            return f"{working} first {given}, now {found}: {verdict} {found}"
        return f"{working} {verdict} {found}"

    def _chat(self, stage_id: str, values: dict[str, str], assistant: str) -> Chat:
        stage = self._workflow.stage(stage_id)
        return Chat(render(stage.system, values), render(stage.user, values), assistant)

    def _mistaken(
        self, question: Question, start: int, chain: Sequence[Operation]
    ) -> tuple[int, list[Step]]:
        """A working with one or two mistakes of the kinds that the small models make."""
        rng = self._rng
        for _ in range(MISTAKE_ATTEMPTS):
            operations_, slips = list(chain), [0] * len(chain)
            first = start
            for _ in range(rng.choice((1, 1, 1, 2))):
                if self._misreadings and rng.random() < self._misreadings:
                    self._misread(question, operations_, slips)
                else:
                    first = self._slip(first, operations_, slips)
            steps = work(first, operations_, slips)
            if steps is not None and steps[-1].after != work_result(start, chain):
                return first, steps
        return start, work(start, chain) or []

    def _misread(self, question: Question, chain: list[Operation], slips: list[int]) -> None:
        rng = self._rng
        index = rng.randrange(len(chain))
        kind = rng.choice(("number", "number", "number", "sign", "repeat", "swap"))
        if kind == "number":
            numbers = [int(number) for number in re.findall(r"\d+", question.text)]
            symbol = chain[index].symbol if chain[index].symbol != "*" else rng.choice("+-")
            chain[index] = Operation(symbol, rng.choice(numbers))
        elif kind == "sign" and chain[index].symbol != "*":
            flipped = "-" if chain[index].symbol == "+" else "+"
            chain[index] = Operation(flipped, chain[index].operand)
        elif kind == "repeat" and len(chain) < MAX_STEPS:
            chain.insert(index, chain[index])
            slips.insert(index, 0)
        elif kind == "swap":
            other = rng.randrange(len(chain))
            chain[index], chain[other] = chain[other], chain[index]

    def _slip(self, start: int, chain: list[Operation], slips: list[int]) -> int:
        """Change the chain or its slips; returns the start, which may have changed too."""
        rng = self._rng
        index = rng.randrange(len(chain))
        operation = chain[index]
        kind = rng.choice(("slip", "slip", "slip", "operand", "sign", "skip", "start"))
        if kind == "slip":
            slips[index] = rng.choice((-10, -1, 1, 10))
        elif kind == "operand" and operation.symbol != "*":
            operand = max(2, operation.operand + rng.choice((-10, -2, -1, 1, 2, 10)))
            chain[index] = Operation(operation.symbol, operand)
        elif kind == "sign" and operation.symbol != "*":
            flipped = "-" if operation.symbol == "+" else "+"
            chain[index] = Operation(flipped, operation.operand)
        elif kind == "skip" and len(chain) > 1:
            del chain[index], slips[index]
        elif kind == "start":
            return max(2, start + rng.choice((-10, -1, 1, 10)))
        return start


def work_result(start: int, chain: Sequence[Operation]) -> int:
    """The right result of a chain."""
    total = start
    for operation in chain:
        total = operation.apply(total)
    return total

"""Answers with known verdicts, made by rule from the public data.

Mathematics: for each gold answer of MATH, forms that are equal (another notation, an expression
that simplifies to it, the solution of the data set itself) and forms that are not (a number off by
one, another sign, another kind of bracket, another entry). Programs: the canonical solutions of
HumanEval and MBPP, and the same with every result changed; for APPS, which has no solutions here,
a program that looks the expected results up, and the same with one result changed.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chimera_train.tasks import Question

__all__ = ["MathAnswer", "changed", "look_up", "math_answers"]

MathAnswer = tuple[Question, str, bool]

_INTEGER = re.compile(r"-?\d+")
_FRACTION = re.compile(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\\?\\%")
_INTERVAL = re.compile(r"([(\[])([^,()\[\]]+),([^,()\[\]]+)([)\]])")
_MATRIX = re.compile(r"\\begin\{pmatrix\}(.*?)\\end\{pmatrix\}", re.DOTALL)
_EXPRESSION = re.compile(r"[-+*/^{}()\d\sa-z]*(?:\\(?:frac|sqrt|pi|cdot)[-+*/^{}()\d\sa-z]*)*")

# Results that differ from the right ones, for every kind of result that a program has.
_CHANGE = """
def _changed(value):
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, (list, tuple)):
        return [*value, 0] if isinstance(value, list) else (*value, 0)
    return None
"""
_WRAP = """
def _wrapped(right):
    return lambda *given, **named: _changed(right(*given, **named))
"""


def math_answers(questions: Sequence[Question], per_kind: int) -> Iterator[MathAnswer]:
    """Answers to the first ``per_kind`` questions of each kind of gold answer, with verdicts."""
    taken: dict[str, int] = defaultdict(int)
    for question in questions:
        kind, right, wrong = _forms(question.answer.strip())
        if taken[kind] >= per_kind:
            continue
        taken[kind] += 1
        yield question, str(question.metadata["solution"]), True
        for form in right:
            yield question, rf"Therefore, the answer is $\boxed{{{form}}}$.", True
        for form in wrong:
            yield question, rf"Therefore, the answer is $\boxed{{{form}}}$.", False


def _forms(gold: str) -> tuple[str, list[str], list[str]]:
    """The kind of a gold answer, equal forms and unequal ones."""
    if _INTEGER.fullmatch(gold):
        number = int(gold)
        right = [f"{number}.0", rf"\frac{{{2 * number}}}{{2}}", f"x = {number}", f"{number:,}"]
        right += [rf"{number} \text{{ units}}", rf"{number}^\circ", rf"\${number}"]
        return "integer", right, [str(number + 1), str(number * 10 + 1), f"{number}.5"]
    if found := _FRACTION.fullmatch(gold):
        sign, top, bottom = found[1], int(found[2]), int(found[3])
        right = [f"{sign}{top}/{bottom}", rf"{sign}\dfrac{{{3 * top}}}{{{3 * bottom}}}"]
        right += [f"{sign}{top / bottom}"] if 1000 % bottom == 0 else []
        other = "" if sign else "-"
        wrong = [rf"\frac{{{top}}}{{{bottom + 1}}}", rf"{other}\frac{{{top}}}{{{bottom}}}"]
        return "fraction", right, [*wrong, rf"{sign}\frac{{{top + bottom}}}{{{bottom}}}"]
    if found := _PERCENT.fullmatch(gold):
        value = float(found[1])
        wrong = [rf"{value + 1:g}\%", f"{value / 10:g}", rf"{value / 100:g}\%"]
        right = [f"{value / 100:.10g}", found[1], rf"{value:g} \%", f"{value:g} percent"]
        return "percent", right, wrong
    if (found := _INTERVAL.fullmatch(gold)) and "infty" not in gold:
        opens, left, right_end, closes = found.groups()
        other = {"(": "[", "[": "(", ")": "]", "]": ")"}
        equal = [rf"\left{opens}{left},\,{right_end}\right{closes}"]
        equal.append(f"{opens} {left} , {right_end} {closes}")
        unequal = [f"{opens}{left},{right_end}+1{closes}", f"{opens}{left}-1,{right_end}{closes}"]
        if "[" in gold or "]" in gold:
            unequal.append(f"{other[opens]}{left},{right_end}{closes}")
        return "pair or interval", equal, unequal
    if found := _MATRIX.fullmatch(gold):
        first, rest = re.split(r"(?=&|\\\\)", found[1].strip(), maxsplit=1)
        equal = [rf"\begin{{bmatrix}}{found[1]}\end{{bmatrix}}", gold.replace("  ", " ")]
        return "matrix", equal, [rf"\begin{{pmatrix}}{first}+1{rest}\end{{pmatrix}}"]
    if found := re.fullmatch(r"\\text\{([A-Za-z ]{3,})\}", gold):
        return "text", [found[1], rf"\textbf{{{found[1]}}}"], [found[1] + "er", "none"]
    if "=" not in gold and _EXPRESSION.fullmatch(gold):
        equal = [rf"\frac{{2 \cdot ({gold})}}{{2}}", f"({gold}) + 0"]
        return "expression", equal, [f"({gold}) + 1", f"2({gold})"]
    return "other", [gold, f" {gold} "], [gold + "+1"]


def changed(code: str, names: Sequence[str]) -> str:
    """A program in which the functions of these names give wrong results."""
    wraps = "".join(f"{name} = _wrapped({name})\n" for name in names)
    return f"{code}\n{_CHANGE}{_WRAP}{wraps}"


def functions_called(code: str, checks: Sequence[str]) -> list[str]:
    """The functions of a program that asserts call."""
    defined = {node.name for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    called = {
        node.func.id
        for check in checks
        for node in ast.walk(ast.parse(check))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return sorted(defined & called)


def look_up(problem: Mapping[str, Any], *, alter: bool) -> str:
    """A program that knows the results of all tests; with ``alter``, all but the last one's."""
    tests = problem["tests"]
    if problem["form"] == "stdio":
        table = dict(tests)
        if alter:
            table[tests[-1][0]] += "0"
        return f"import sys\nTABLE = {table!r}\nprint(TABLE[sys.stdin.read()], end='')"
    results = {repr(case["alternatives"][0]): case["expected"][-1] for case in tests}
    if alter:
        results[repr(tests[-1]["alternatives"][0])] = ["altered", json.dumps(tests[-1]["expected"])]
    name = problem["function"]
    return f"TABLE = {results!r}\ndef {name}(*given):\n    return TABLE[repr(list(given))]"

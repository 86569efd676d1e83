"""The tests of programming problems, in the forms in which the public data sets have them.

Whatever the form, what is kept of a problem is a JSON object: ``form`` (``stdio``, ``calls`` or
``checks``), the hidden ``tests``, the ``public`` ones, and what these need to run.
"""

import ast
import builtins
import doctest
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from chimera_train.tasks.rows import Row
from chimera_train.tasks.settings import CodeSettings

__all__ = ["problem_of", "question_text"]

_SIGNATURE = re.compile(r"def\s+([A-Za-z_]\w*)\s*\(")


def problem_of(row: Row, settings: CodeSettings) -> dict[str, Any]:
    """The problem that a row of data holds.

    Raises:
        DataError: a field is missing, or is not what the task's form says.
    """
    if settings.form == "io":
        return _pairs(row, settings)
    if settings.form == "asserts":
        return _asserts(row, settings)
    return _check(row, settings)


def question_text(row: Row, settings: CodeSettings, problem: Mapping[str, Any]) -> str:
    """What a model is shown: the description, and what its program must look like.

    Raises:
        DataError: there is no description.
    """
    text = row.text(settings.fields.question, "question").strip()
    if settings.form == "check":
        return f"Complete this Python function.\n```python\n{text}\n```"
    starter = str(row.get(settings.fields.starter_code, "")).strip()
    if starter:
        text += f"\n\nBegin with this code.\n```python\n{starter}\n```"
    elif problem["form"] == "stdio":
        text += "\n\nWrite a Python program that reads from stdin and prints to stdout."
    if settings.form == "asserts" and problem["public"]:
        shown = "\n".join(problem["public"])
        text += f"\n\nYour code should pass these tests.\n```python\n{shown}\n```"
    return text


# ----- pairs of input and output ------------------------------------------------------------


def _pairs(row: Row, settings: CodeSettings) -> dict[str, Any]:
    fields = settings.fields
    tests, named = _pairs_of(row.need(fields.tests, "tests"), row, "tests")
    public, _ = _pairs_of(row.get(fields.public_tests, []), row, "public_tests")
    if not tests:
        raise row.wrong("tests", "holds no tests")
    starter = str(row.get(fields.starter_code, ""))
    signature = _SIGNATURE.search(starter)
    function = row.get(fields.function) or named or (signature[1] if signature else None)
    if function is None:
        return {
            "form": "stdio",
            "tests": [[_whole(given), _whole(wanted)] for given, wanted in tests],
            "public": [[_whole(given), _whole(wanted)] for given, wanted in public],
        }
    cases = _cases([*tests, *public], _count_parameters(starter))
    return {
        "form": "calls",
        "function": function,
        "tests": cases[: len(tests)],
        "public": cases[len(tests) :],
    }


def _pairs_of(value: Any, row: Row, key: str) -> tuple[list[tuple[Any, Any]], str | None]:
    """Inputs with outputs, and the function's name if the tests say it.

    Read are APPS's object of ``inputs``, ``outputs`` and ``fn_name``, also as JSON in a text, and
    a list of objects with ``input`` and ``output``.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise row.wrong(key, f"is not JSON ({error})") from error
    try:
        if isinstance(value, Mapping):
            pairs = list(zip(value["inputs"], value["outputs"], strict=True))
            return pairs, value.get("fn_name")
        return [(test["input"], test["output"]) for test in value], None
    except (KeyError, TypeError, ValueError) as error:
        raise row.wrong(key, "must be 'inputs' and 'outputs', or a list of both") from error


def _whole(value: Any) -> str:
    """Text of stdin or stdout; a list is one of lines, each with or without its end."""
    if isinstance(value, list):
        return "\n".join(str(line).removesuffix("\n") for line in value) + "\n"
    return str(value)


def _count_parameters(starter: str) -> int | None:
    """How many parameters the function of a starter code takes; None if it cannot be told."""
    body = "\n        pass\n" if "class " in starter else "\n    pass\n"
    for source in (starter, starter.rstrip() + body):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                return len([each for each in node.args.args if each.arg != "self"])
    return None


def _cases(tests: Sequence[tuple[Any, Any]], count: int | None) -> list[dict[str, Any]]:
    """Calls: the ways to read the arguments of each, best first, and the results that are right.

    Arguments may be texts of which is not said whether they are values or strings. One that is no
    value in some test is taken as a string in all; then all of a call are tried as strings.
    """
    splits = [_splits(given, count) if isinstance(given, str) else [] for given, _ in tests]
    strings = {
        position
        for each in splits
        for position, piece in enumerate(each[0] if each else [])
        if _value(piece) is None
    }
    cases = []
    for (given, wanted), each in zip(tests, splits, strict=True):
        alternatives = [] if each else [given if isinstance(given, list) else [given]]
        for pieces in each:
            values = [
                piece if position in strings else _literal(piece)
                for position, piece in enumerate(pieces)
            ]
            alternatives += [read for read in (values, pieces) if read not in alternatives]
        expected = [wanted, *wanted] if isinstance(wanted, list) and len(wanted) == 1 else [wanted]
        cases.append({"alternatives": alternatives, "expected": expected})
    return cases


def _splits(given: str, count: int | None) -> list[list[str]]:
    """A text as arguments: one a line, unless there are more lines than parameters.

    Then one of the arguments has several lines, and which cannot be told.
    """
    lines = given.split("\n")
    extra = len(lines) - (count or len(lines))
    if extra <= 0:
        return [lines]
    return [
        [*lines[:first], "\n".join(lines[first : first + extra + 1]), *lines[first + extra + 1 :]]
        for first in range(len(lines) - extra)
    ]


def _literal(text: str) -> Any:
    """The value that a text writes down, else the text."""
    value = _value(text)
    return text if value is None else value[0]


def _value(text: str) -> list[Any] | None:
    """The JSON or Python value that a text writes down, in a list; None if it is none."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        pass
    # Python would also read 0042 and 1_0, which are strings.
    if not text.strip().startswith(("[", "(", "{", "'", '"', "True", "False", "None")):
        return None
    try:
        return [json.loads(json.dumps(ast.literal_eval(text.strip())))]
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


# ----- code that tests ------------------------------------------------------------------------


def _asserts(row: Row, settings: CodeSettings) -> dict[str, Any]:
    value = row.need(settings.fields.tests, "tests")
    checks = [value] if isinstance(value, str) else value
    if not isinstance(checks, Sequence) or not checks or not all(map(_is_code, checks)):
        raise row.wrong("tests", "must be assert statements, a list of them or a text")
    setup = str(row.get(settings.fields.setup, "")).replace("\r\n", "\n")
    if not _is_code(setup):
        raise row.wrong("setup", "is not Python code")
    return {
        "form": "checks",
        "function": str(row.get(settings.fields.function, "")) or _builtin_under_test(checks),
        "trusted": "",
        "setup": setup,
        "tests": list(checks),
        "public": list(checks[: settings.shown]),
    }


def _check(row: Row, settings: CodeSettings) -> dict[str, Any]:
    fields = settings.fields
    prompt = row.text(fields.question, "question")
    test = row.text(fields.tests, "tests")
    if not _is_code(prompt + "\n" + test) or "def check" not in test:
        raise row.wrong("tests", "must be code that defines check(candidate)")
    return {
        "form": "checks",
        "function": row.text(fields.function or "", "function"),
        "trusted": prompt + "\n" + test,
        "setup": "",
        "prompt": prompt,
        "tests": ["check(candidate)"],
        "public": _examples(prompt),
    }


def _builtin_under_test(checks: Sequence[str]) -> str:
    """The builtin that asserts test because they call nothing else by name; else empty.

    Only then is a program's own function of that name asked for: one that wrote its own ``set``
    could pass every assert that compares sets.
    """
    called = [
        {
            node.func.id
            for node in ast.walk(ast.parse(check))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for check in checks
    ]
    if all(hasattr(builtins, name) for names in called for name in names):
        common = set.intersection(*called)
        return common.pop() if len(common) == 1 else ""
    return ""


def _is_code(value: Any) -> bool:
    try:
        ast.parse(value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _examples(prompt: str) -> list[str]:
    """The examples of a docstring as asserts; those whose result is no literal are left out."""
    try:
        examples = doctest.DocTestParser().get_examples(prompt)
    except ValueError:
        return []
    checks = []
    for example in examples:
        try:
            value = ast.literal_eval(example.want.strip())
            ast.parse(example.source.strip(), mode="eval")
        except (ValueError, SyntaxError):
            continue
        checks.append(f"assert {example.source.strip()} == {value!r}")
    return checks

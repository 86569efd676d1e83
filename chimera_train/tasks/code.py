"""Judging programs by tests that they cannot see.

What a program should print or return never enters its sandbox. Programs by stdin and stdout are
compared here. Functions are called, and asserts are evaluated, in a second sandbox that has no
other way to the program than to ask for plain values (``guest``). So a program is not right
because it exits, prints a verdict, patches what tests use, or returns objects that equal anything.
"""

import json
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from threading import BoundedSemaphore
from typing import Any

from chimera_train.tasks.code_tests import problem_of, question_text
from chimera_train.tasks.model import Question, Verdict
from chimera_train.tasks.rows import Row
from chimera_train.tasks.sandbox import Limits, run_programs, sandbox, started
from chimera_train.tasks.settings import CodeSettings

__all__ = ["CodeGrader", "extract_code"]

_REPORT_CHARACTERS = 1000
_SHOWN_CHARACTERS = 250
# A program may take this many times the limit of one test for all of them together.
_ALL_TESTS = 10
_CHECK_KEYS = ("function", "trusted", "setup")
_FENCE = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


def extract_code(text: str) -> str:
    """The program in a model's answer: its last fenced block, or all of it if there is none."""
    blocks = [block for block in _FENCE.findall(text) if block.strip()]
    return str(blocks[-1]) if blocks else text


class CodeGrader:
    """Runs the programs that models answer with against the tests of their questions."""

    def __init__(self, settings: CodeSettings) -> None:
        self._settings = settings
        self._limits = Limits(
            wall_s=settings.time_limit_s,
            cpu_s=math.ceil(settings.time_limit_s),
            memory_mib=settings.memory_mib,
        )
        # More at once than there are cores would make the clock judge the machine.
        self._free = BoundedSemaphore(max(1, len(os.sched_getaffinity(0))))

    def read(self, row: Row) -> tuple[str, str]:
        """A question's text and its tests as JSON.

        Raises:
            DataError: the row holds no such problem.
        """
        problem = problem_of(row, self._settings)
        return question_text(row, self._settings, problem), json.dumps(problem)

    def judge(self, question: Question, text: str) -> Verdict:
        """1 if the program passes every hidden test, else 0; stops at the first that it fails."""
        problem = json.loads(question.answer)
        passed, failure = self._test(problem, problem["tests"], extract_code(text))
        if not failure:
            return Verdict(1.0)
        return Verdict(0.0, f"wrong: test {passed + 1} of {len(problem['tests'])}, {failure}")

    def public_tests(self, question: Question, text: str) -> str:
        """A report on the tests that the question shows, for a stage to read.

        At most about 1,000 characters; ends in ``accept`` or ``reject``.
        """
        problem = json.loads(question.answer)
        tests = problem["public"]
        if not tests:
            return "There are no public tests.\naccept"
        passed, failure = self._test(problem, tests, extract_code(text))
        report = f"{passed} of {len(tests)} public tests pass."
        if not failure:
            return f"{report}\naccept"
        return f"{report} The first that fails: {failure}"[:_REPORT_CHARACTERS] + "\nreject"

    def close(self) -> None:
        """Nothing is held between answers."""

    def _test(self, problem: Mapping[str, Any], tests: Sequence[Any], code: str) -> tuple[int, str]:
        """How many tests pass before the first that does not, and what is wrong with that one."""
        if not code.strip():
            return 0, "there is no program"
        program = f"{self._settings.preamble}\n{_completed(problem, code)}"
        with self._free:
            if problem["form"] == "stdio":
                return self._print(program, tests)
            return self._ask(program, problem, tests)

    def _print(self, program: str, tests: Sequence[tuple[str, str]]) -> tuple[int, str]:
        runs = run_programs(program, [given for given, _ in tests], self._limits)
        passed, spent_s = 0, 0.0
        with closing(runs):
            for (given, wanted), run in zip(tests, runs, strict=False):
                spent_s += run.wall_s
                if run.status != "ok":
                    last = run.stderr.strip().rpartition("\n")[2]
                    return passed, f"{run.status} on input {_cut(given)} {_cut(last)}"
                if not _same_output(run.stdout, wanted):
                    return passed, (
                        f"input {_cut(given)} gave {_cut(run.stdout)}, expected {_cut(wanted)}"
                    )
                passed += 1
                if spent_s > _ALL_TESTS * self._limits.wall_s:
                    break
        return passed, "" if passed == len(tests) else "timeout"

    def _ask(
        self, program: str, problem: Mapping[str, Any], tests: Sequence[Any]
    ) -> tuple[int, str]:
        runs = min(len(tests), _ALL_TESTS) if problem["form"] == "calls" else 1
        checks = {"mode": "check", **{key: problem.get(key, "") for key in _CHECK_KEYS}}
        checks["cases" if problem["form"] == "calls" else "checks"] = tests
        one, other = socket.socketpair()
        with one, other:
            serve = {"mode": "serve", "code": program}
            with (
                sandbox(serve, self._limits, runs=runs, peer=one),
                sandbox(checks, self._limits, runs=runs, peer=other) as channel,
            ):
                # So that each of them sees when the other is gone.
                one.close()
                other.close()
                result = channel.read(runs * self._limits.wall_s) if started(channel) else None
        if result is None:
            return 0, "timeout"
        failed = result["failed"]
        return result["passed"], "" if failed is None else f"{_cut(failed)} {result['reason']}"


def _completed(problem: Mapping[str, Any], code: str) -> str:
    """A program out of what may be only the rest of a function that the question began."""
    prompt = problem.get("prompt")
    if prompt is None:
        return code
    if re.search(rf"^[ \t]*def[ \t]+{re.escape(problem['function'])}\b", code, re.MULTILINE):
        return f"{prompt}\n    pass\n\n{code}"
    return f"{prompt.rstrip()}\n{code}"


def _same_output(found: str, wanted: str) -> bool:
    """Equal word by word, where numbers with a decimal point need only be close."""
    left, right = found.split(), wanted.split()
    return len(left) == len(right) and all(
        one == other or _close(one, other) for one, other in zip(left, right, strict=True)
    )


def _close(one: str, other: str) -> bool:
    if "." not in one + other:
        return False
    try:
        return math.isclose(float(one), float(other), rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def _cut(text: str) -> str:
    shown = repr(text) if "\n" in text else text
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[: _SHOWN_CHARACTERS - 1] + "…"

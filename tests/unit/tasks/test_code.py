"""Programs are judged by what they compute, whatever they try."""

import json

import pytest

from chimera_train.errors import ConfigError, DataError
from chimera_train.tasks import get_task, open_task
from chimera_train.tasks.code import extract_code
from chimera_train.tasks.guest.check import same
from chimera_train.tasks.guest.values import decode, encode
from chimera_train.tasks.rows import read_rows

FIELDS = {"question": "text", "tests": "tests"}
ADD = {"text": "Add the two numbers.", "tests": [["1 2\n", "3\n"], ["10 -4\n", "6\n"]]}


def pairs(*tests):
    return [{"input": given, "output": wanted} for given, wanted in tests]


@pytest.fixture
def judge(write_task):
    """The verdict on a program for one problem."""

    def judge(row, code, *, fields=FIELDS, **settings):
        settings = {"time_limit_s": 10, "memory_mib": 256, **settings}
        path = write_task([row], kind="code", fields=fields, **settings)
        with open_task(path, allow_code_execution=True) as task:
            (question,) = task.questions(1, 0)
            return task.judge(question, code)

    return judge


@pytest.fixture
def stdio(judge):
    row = {"text": "Add.", "tests": pairs(["1 2\n", "3\n"], ["10 -4\n", "6\n"])}
    return lambda code: judge(row, code, form="io")


@pytest.fixture
def asserts(judge):
    row = {
        "text": "Write f that squares.",
        "tests": ["assert f(3) == 9", "assert set(f(n) for n in (1, 2)) == {1, 4}"],
    }
    return lambda code, **settings: judge(row, code, form="asserts", **settings)


@pytest.fixture
def check(judge):
    row = {
        "text": (
            "def half(n):\n    return n / 2\n\n"
            'def f(n):\n    """Square.\n    >>> f(3)\n    9\n    """\n'
        ),
        "tests": (
            "def check(candidate):\n"
            "    assert candidate(3) == 9\n"
            "    assert half(candidate(2)) == 2\n"
        ),
        "name": "f",
    }
    fields = {**FIELDS, "function": "name"}
    return lambda code: judge(row, code, form="check", fields=fields)


def test_a_program_is_right_if_it_prints_what_is_expected(stdio):
    assert stdio("a, b = map(int, input().split())\nprint(a + b)").score == 1
    verdict = stdio("a, b = map(int, input().split())\nprint(abs(a) + abs(b))")
    assert verdict.score == 0
    assert verdict.reason.startswith("wrong: test 2 of 2, input '10 -4\\n' gave")


@pytest.mark.parametrize(
    "code",
    [
        "exit(0)",
        "import os\nos._exit(0)",
        "",
        "syntax error",
        # The verdict, and the answer of the sandbox, on every descriptor there is.
        "import os\n"
        "for fd in range(64):\n"
        '    try: os.write(fd, b\'{"status": "ok", "exit_code": 0, "stdout": "3"}\\n\')\n'
        "    except OSError: pass",
        # Whatever the process that forks it knows.
        "import sys\nframe = sys._getframe()\n"
        "while frame:\n    print(frame.f_locals)\n    frame = frame.f_back",
        "import os\nos.kill(os.getppid(), 9)\nprint(3)",
    ],
)
def test_a_program_cannot_pass_without_printing_it(stdio, code):
    assert stdio(code).score == 0


HOSTILE_MODULES = {
    "exit": "exit(0)",
    "_exit": "import os\nos._exit(0)",
    "exit when called": "import os\ndef f(n): os._exit(0)",
    "equal to anything": (
        "class E:\n"
        "    __eq__ = lambda a, b: True\n    __ne__ = lambda a, b: False\n"
        "    __hash__ = lambda a: 9\n"
        "def f(n): return E()"
    ),
    "a number that is equal to anything": (
        "class E(int):\n    __eq__ = lambda a, b: True\n    __hash__ = lambda a: 9\n"
        "def f(n): return E(7)"
    ),
    "its own set": "def f(n): return 9\ndef set(x): return {1, 4}\nclass frozenset(int): pass",
    "patched builtins": (
        "import builtins\nbuiltins.set = lambda x: {1, 4}\nbuiltins.AssertionError = SystemExit\n"
        "def f(n): return 9"
    ),
    "a printed verdict": (
        'print(\'{"passed": 2, "failed": null, "reason": ""}\', flush=True)\ndef f(n): return 0'
    ),
    "a verdict on every descriptor": (
        "import os\n"
        "for fd in range(64):\n"
        '    try: os.write(fd, b\'{"passed": 2, "failed": null, "reason": "", "value": 9}\\n\')\n'
        "    except OSError: pass\n"
        "def f(n): return 0"
    ),
    "searching for what is expected": (
        "import gc\n"
        "def f(n):\n"
        "    for each in gc.get_objects():\n"
        "        if isinstance(each, dict) and 'checks' in each: return 9 if n == 3 else n * n\n"
        "    return 0"
    ),
    "a loop": "def f(n):\n    while True: pass",
    "a hang at import": "import time\ntime.sleep(60)",
    "an endless answer": "def f(n): return [0] * 10 ** 7",
    "a deep answer": "def f(n):\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
}


@pytest.mark.parametrize("name", HOSTILE_MODULES)
def test_a_module_cannot_pass_asserts_without_the_values(asserts, name):
    limit_s = 0.5 if name in ("a loop", "a hang at import") else 10
    assert asserts(HOSTILE_MODULES[name], time_limit_s=limit_s).score == 0


def test_a_loop_over_calls_is_not_cut_short(judge):
    row = {"text": "q", "tests": ["assert all(map(f, (1, 2)))"]}
    assert judge(row, "def f(n): raise StopIteration", form="asserts").score == 0


def test_asserts_are_of_plain_values(asserts):
    assert asserts("def f(n): return n ** 2").score == 1
    assert asserts("```python\ndef f(n):\n    return n ** 2\n```\nIt squares.").score == 1
    assert asserts("def f(n): return n + 6").score == 0


def test_a_function_may_be_written_out_or_only_completed(check):
    assert check("    return n * n").score == 1
    assert check("Here it is.\n```python\ndef f(n):\n    return n * n\n```").score == 1
    assert check("def check(candidate): pass\ndef half(n): return 2\ndef f(n): return 9").score == 0


def test_classes_and_builtin_names_of_a_program_can_be_tested(judge):
    code = (
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "def total(pairs): return sum(p.a + p.b for p in pairs)\n"
        "def swap(pair):\n    pair.a, pair.b = pair.b, pair.a\n    return pair"
    )
    tests = [
        "assert total([Pair(1, 2), Pair(3, 4)]) == 10",
        "p = Pair(1, 2)\np.a = 7\nassert swap(p).b == 7",
    ]
    assert judge({"text": "q", "tests": tests}, code, form="asserts").score == 1
    tests = ["assert sum(10, 15) == 6", "assert sum(2, 3) == 1"]
    code = "def sum(a, b): return 6 if a == 10 else 1"
    assert judge({"text": "q", "tests": tests}, code, form="asserts").score == 1


def test_functions_are_called_with_values(judge):
    row = {
        "text": "q",
        "starter": "def solve(word, counts):\n\t",
        "tests": pairs(["0042\n[1, 2]", ["0042-3"]], ["ab\n[5]", ["ab-5"]]),
    }
    fields = {**FIELDS, "starter_code": "starter"}
    right = "def solve(word, counts):\n    return word + '-' + str(sum(counts))"
    assert judge(row, right, form="io", fields=fields).score == 1
    wrong = judge(row, "def solve(word, counts): return 'ab-5'", form="io", fields=fields)
    assert "expected" in wrong.reason
    assert wrong.reason.startswith("wrong: test 1 of 2, ")
    assert judge(row, "exit(0)", form="io", fields=fields).score == 0


def test_methods_of_a_class_solution_are_called(judge):
    row = {
        "text": "q",
        "tests": json.dumps(
            {"fn_name": "add", "inputs": [[1, [2.5]], [3, [4]]], "outputs": [3.5, [7]]}
        ),
    }
    code = (
        "from typing import List\n"
        "class Solution:\n    def add(self, a: int, b: List[float]): return a + b[0]"
    )
    assert judge(row, code, form="io").score == 1
    assert judge(row, code.replace("a +", "a -"), form="io").score == 0


def test_public_tests_are_reported_for_a_stage_to_read(write_task):
    row = {"text": "Add.", "tests": pairs(["1 2\n", "3\n"]), "public": pairs(["2 2\n", "4\n"])}
    path = write_task([row], kind="code", form="io", fields={**FIELDS, "public_tests": "public"})
    with open_task(path, allow_code_execution=True) as task:
        (question,) = task.questions(1, 0)
        right = task.public_tests(question, "print(sum(map(int, input().split())))")
        wrong = task.public_tests(question, "print('x' * 5000)")
    assert right == "1 of 1 public tests pass.\naccept"
    assert wrong.startswith("0 of 1 public tests pass. The first that fails: input '2 2\\n' gave")
    assert wrong.endswith("\nreject")
    assert len(wrong) < 1100


def test_the_last_block_is_the_program():
    assert extract_code("x = 1") == "x = 1"
    assert extract_code("first\n```\na\n```\nthen\n```python\nb\n```\nend") == "b\n"
    assert extract_code("cut short\n```python\na = 1\nb = 2") == "a = 1\nb = 2"


@pytest.mark.parametrize(
    "value",
    [
        None, True, -(10**5000), 1.5, float("inf"), 1 + 2j, "a\ud800", b"x", [1, [2]], (1,),
        {1, (2,)}, frozenset({3}), {(1, 2): [3]}, int,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_plain_values_cross_unchanged(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        ((1, 2), [1, 2], True),
        ({1: "a"}, {"1": "a"}, True),
        (0.1 + 0.2, 0.3, True),
        (2, 2.0, True),
        ("2", 2, False),
        ([1], [1, 2], False),
        (None, [], False),
    ],
)
def test_results_are_compared_as_json_has_them(found, expected, equal):
    assert same(found, expected) is equal


def test_programs_are_not_run_without_permission(write_task):
    row = {"text": "q", "tests": pairs(["", ""])}
    path = write_task([row], kind="code", form="io", fields=FIELDS)
    with pytest.raises(ConfigError, match=r"--allow-code-execution"), open_task(path):
        pass


@pytest.mark.parametrize(
    ("form", "row", "wrong"),
    [
        ("io", {"text": "q", "tests": "{"}, "mapped to 'tests' .* is not JSON"),
        ("io", {"text": "q", "tests": [{"input": "x"}]}, "must be 'inputs' and 'outputs'"),
        ("io", {"text": "q", "tests": []}, "holds no tests"),
        ("io", {"text": "q"}, "has no field 'tests'"),
        ("asserts", {"text": "q", "tests": ["assert ("]}, "must be assert statements"),
        ("asserts", {"text": "q", "tests": ["-" * 20_000 + "1"]}, "must be assert statements"),
        ("check", {"text": "def f(): pass", "tests": "x = 1"}, "defines check"),
    ],
)
def test_problems_without_usable_tests_are_refused(write_task, form, row, wrong):
    fields = {**FIELDS, "function": "text"} if form == "check" else FIELDS
    path = write_task([row], kind="code", form=form, fields=fields)
    with pytest.raises(DataError, match=rf"rows.jsonl:1\b.*{wrong}"):
        get_task(path).questions(1, 0)


@pytest.mark.parametrize(
    ("task", "file", "solution", "first"),
    [
        ("humaneval", "humaneval", "canonical_solution", "HumanEval/0"),
        ("mbpp", "mbpp", "code", "1"),
    ],
)
def test_public_problems_and_their_solutions(public_data, task, file, solution, first):
    data = public_data("code", f"{file}.jsonl.gz")
    with open_task(task, data=str(data), allow_code_execution=True) as opened:
        question = opened.all_questions[0]
        assert question.question_id == f"{task}-{first}"
        row = next(read_rows(opened.settings.source, opened.task_file))
        assert opened.grade(question, row.values[solution]) == 1
        assert opened.grade(question, "no program") == 0
        assert opened.public_tests(question, row.values[solution]).endswith("accept")


def test_public_problems_without_solutions_are_read(public_data):
    task = get_task("code", data=str(public_data("code", "apps_128.jsonl.gz")))
    forms = [json.loads(question.answer)["form"] for question in task.all_questions]
    assert (forms.count("stdio"), forms.count("calls")) == (49, 79)

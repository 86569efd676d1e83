"""The verdicts of made answers are known because of how they are made."""

import contextlib
import io

from grading_answers import changed, functions_called, look_up, math_answers

from chimera_train.tasks import Question


def module(code):
    space = {}
    exec(code, space)  # noqa: S102 - made by the benchmark
    return space


def test_each_kind_of_gold_answer_has_equal_and_unequal_forms():
    golds = ["7", r"\frac{1}{2}", r"25\%", "[1,2)", r"\begin{pmatrix}1\\2\end{pmatrix}", "x+1"]
    questions = [Question(gold, "math", "", gold, {"solution": "s"}) for gold in golds]
    answers = list(math_answers(questions * 2, per_kind=1))
    for gold in golds:
        known = [right for question, _, right in answers if question.question_id == gold]
        assert known.count(True) > 1
        assert known.count(False) > 0
    assert len({text for _, text, _ in answers}) == len(answers) - len(golds) + 1


def test_changed_functions_give_other_results():
    code = "def f(n): return n\ndef g(n): return str(n)"
    names = functions_called(code, ["assert f(1) == 1", "assert len(g(2)) == 1"])
    space = module(changed(code, names))
    assert (space["f"](1), space["g"](1)) == (2, "1x")


def test_look_up_programs_know_all_results_but_the_altered(monkeypatch):
    calls = {
        "form": "calls",
        "function": "f",
        "tests": [
            {"alternatives": [[1, "a"]], "expected": [["x"], "x"]},
            {"alternatives": [[2, "b"]], "expected": [3]},
        ],
    }
    right, wrong = module(look_up(calls, alter=False)), module(look_up(calls, alter=True))
    assert (right["f"](1, "a"), right["f"](2, "b")) == ("x", 3)
    assert wrong["f"](1, "a") == "x"
    assert wrong["f"](2, "b") != 3
    printing = {"form": "stdio", "tests": [["1\n", "2\n"]]}
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        module(look_up(printing, alter=False))
    assert printed.getvalue() == "2\n"

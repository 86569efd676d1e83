"""Which answer of a text counts, and what happens to comparisons that never end."""

import threading
import time

import pytest

from chimera_train.errors import DataError
from chimera_train.tasks import get_task
from chimera_train.tasks.choice import chosen_letter
from chimera_train.tasks.code import extract_code
from chimera_train.tasks.math_answers import final_answer, normalised
from chimera_train.tasks.math_pool import VerifyPool
from chimera_train.tasks.mathematics import MathGrader
from chimera_train.tasks.model import Question
from chimera_train.tasks.settings import load_settings

ENDLESS = "10^{99999999}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{5}$ and then $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"\boxed 7.", "7"),
        (r"\fbox{7}", "7"),
        (r"a set: \boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"never closed: \boxed{1", None),
        (r"first \boxed{3}, cut: \boxed{", "3"),
        ("step 1\n#### 1,234\n", "1,234"),
        ("The answer is 18.", "18"),
        ("The answer is 3.5 dollars. He is glad.", "3.5 dollars"),
        ("Final answer: **42**", "42"),
        (r"The answer is $\frac{1}{2}$, since", r"\frac{1}{2}"),
        ("The answer is 4. No, the answer is 5.", "5"),
        ("The final answer is:\n\n72", "72"),
        (r"The answer is \(x = 3\).", "x = 3"),
        ("It is 5.", None),
        ("", None),
        ("The answer is", None),
    ],
)
def test_the_last_answer_of_a_text(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        (r"$\left( 1,\, 2 \right)$", "( 1, 2 )"),
        (r"\$1{,}234.50", "1234.50"),
        ("5 dollars", "5"),
        (r"\dfrac{1}{2}\text{ cm}^{2}", r"\frac{1}{2}"),
        ("3xy^2", "3xy^2"),
        ("1,2,3", "1,2,3"),
        (r"0.\overline{12}", r"\frac{12}{99}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
)
def test_what_has_no_mathematical_meaning_is_dropped(answer, plain):
    assert normalised(answer) == plain


def test_a_comparison_that_hangs_is_ended_and_said(caplog):
    pool = VerifyPool(deadline_s=0.5, size=1)
    grader = MathGrader(load_settings("math")[0], pool)
    question = Question("math-7", "math", "", "1")
    start = time.monotonic()
    try:
        verdict = grader.judge(question, rf"\boxed{{{ENDLESS}}}")
        assert verdict.score == 0
        assert "could not be compared in time" in verdict.reason
        assert "math-7" in caplog.text
        assert grader.judge(question, r"\boxed{\frac{2}{2}}").score == 1, "it was replaced"
    finally:
        grader.close()
    assert time.monotonic() - start < 60


def test_many_threads_share_few_processes():
    pool = VerifyPool(size=2)
    found = {}

    def ask(number):
        found[number] = pool.equal([(str(number), rf"\frac{{{2 * number}}}{{2}}")])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert found == dict.fromkeys(range(12), True)


def test_answers_without_end_or_sense_are_wrong():
    grader = MathGrader(load_settings("math")[0], VerifyPool(size=1))
    question = Question("q", "math", "", "5")
    try:
        for text in ("I do not know", rf"\boxed{{{'9' * 5000}}}", r"\boxed{\frac{}}", "\0"):
            assert grader.judge(question, text).score == 0
    finally:
        grader.close()


@pytest.mark.parametrize("part", [r"\\boxed{", "answer is", " ", "{", "#", "x\n", r"\\text{"])
def test_a_text_that_runs_away_is_read_quickly(part):
    start = time.monotonic()
    for text in (part * 20_000, "the answer is " + part * 20_000, r"\boxed{" + part * 20_000):
        final_answer(text)
        normalised((part * 20_000)[:2000])
        chosen_letter(text)
        extract_code(text)
    assert time.monotonic() - start < 5


def test_a_gold_answer_may_be_the_end_of_a_solution(write_task):
    rows = [
        {"q": "a", "a": r"Thus $\boxed{\frac{1}{2}}$."},
        {"q": "b", "a": "2 + 3 = 5\n#### 5"},
        {"q": "c", "a": "7"},
    ]
    path = write_task(rows, kind="math", fields={"question": "q", "answer": "a"})
    assert [each.answer for each in get_task(path).all_questions] == [r"\frac{1}{2}", "5", "7"]
    rows = [{"q": "a", "a": r"\boxed{}"}]
    path = write_task(rows, kind="math", fields={"question": "q", "answer": "a"})
    with pytest.raises(DataError, match=r"'answer' .* holds no answer"):
        get_task(path).questions(1, 0)


@pytest.mark.parametrize(
    "answer", [r"\ne 4", r"x \not= 4", r"\neg 4", "≠ 4", r"x \ne 4 \cup \mathbb{R}"]
)
def test_what_an_answer_denies_is_not_its_answer(answer):
    grader = MathGrader(load_settings("math")[0], VerifyPool(size=1))
    try:
        assert grader.judge(Question("q", "math", "?", "4"), f"\\boxed{{{answer}}}").score == 0
    finally:
        grader.close()

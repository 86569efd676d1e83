"""Verdicts on answers to mathematical questions, written by hand.

They hold with antlr4 4.9.3 and 4.13.2, under which math-verify alone decides some differently.
"""

import pytest

from chimera_train.tasks.mathematics import MathGrader
from chimera_train.tasks.model import Question
from chimera_train.tasks.settings import load_settings

pytestmark = pytest.mark.golden

EQUAL = [
    # fractions and decimals
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{1}{2}", r"\dfrac{1}{2}"),
    (r"\frac{3}{4}", r"\frac34"),
    (r"\frac{3}{4}", "3/4"),
    (r"\frac{14}{3}", r"4\frac{2}{3}"),
    (r"-\frac{2}{3}", r"\frac{-2}{3}"),
    (r"\frac12", ".5"),
    (r"0.\overline{3}", r"\frac{1}{3}"),
    (r"0.1\overline{6}", "1/6"),
    ("2", r"\frac{4}{2}"),
    # roots, powers, constants
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"11\sqrt2", r"11 \sqrt{2}"),
    ("10^{10}", "10000000000"),
    (r"\frac{\pi}{2}", r"0.5\pi"),
    ("2+3i", "3i+2"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    # expressions and equations
    ("x^2+2x+1", "(x+1)^2"),
    ("y=2x+3", "y = 3 + 2x"),
    ("5", "x=5"),
    ("x=5", "5"),
    # intervals and sets
    ("[2,3)", r"[2, 3)"),
    (r"(-\infty,3]\cup[4,\infty)", r"(-\infty, 3] \cup [4, \infty)"),
    ("[-2,7]", r"-2 \le x \le 7"),
    (r"x \in [-2,7]", "[-2, 7]"),
    (r"\{1,2\}", r"\{2, 1\}"),
    ("1,2,3", "3, 2, 1"),
    ("-1, 3", r"-1 \text{ and } 3"),
    (r"\pm 3", "3, -3"),
    (r"\left(\frac{3}{2},\sqrt{3}\right)", r"(1.5, \sqrt{3})"),
    # matrices
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
    ),
    (r"\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}", r"\begin{pmatrix} \frac{1}{2} \\ 3 \end{pmatrix}"),
    # percent: a tenth, or ten where percent were asked for
    (r"10\%", "0.1"),
    (r"10\%", "10"),
    ("0.1", r"10\%"),
    ("10", r"10\%"),
    (r"10\%", r"10 \%"),
    ("12.5", "12.5 percent"),
    # units, degrees, money
    (r"5\text{ cm}", "5"),
    (r"12 \text{ cm}^2", "12"),
    (r"12 \text{ m}^2", "12"),
    (r"2\sqrt{3} \text{ cm}", r"2\sqrt{3}"),
    ("5", "5 cm^2"),
    ("14", r"14 \text{ square units}"),
    ("18", "18 dollars per day"),
    ("90^\\circ", "90"),
    ("50", r"50^{\circ}"),
    ("45", "45°"),
    (r"\$5.00", "5"),
    ("5", r"\$5"),
    (r"3 \text{ feet}", "3 feet"),
    # thousands
    ("1,234", "1234"),
    ("1234567", "1,234,567"),
    ("10{,}000", "10000"),
    # text
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{(C)}", "C"),
    ("C", "(C)"),
    (r"\text{June 20}", "June 20"),
    (r"\text{even}", r"\textbf{even}"),
    ("6:00", "6:00"),
    ("2516_8", "2516_{8}"),
    ("2516_8", "2516"),
]

DIFFERENT = [
    (r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"\frac{1}{3}", "0.33"),
    (r"-\frac{2}{3}", r"\frac{2}{3}"),
    (r"0.\overline{3}", "0"),
    (r"0.\overline{3}", "0.3"),
    (r"\pi", "3.14"),
    (r"\sqrt{8}", r"2\sqrt{3}"),
    ("[2,3)", "(2,3)"),
    ("(2,3)", "[2,3]"),
    ("(1,2)", "(2,1)"),
    ("1,2", "1,3"),
    ("1,2,3", "1,2"),
    (r"(-\infty,3]\cup[4,\infty)", r"(-\infty,3)\cup[4,\infty)"),
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 5 \end{pmatrix}",
    ),
    (r"10\%", "1"),
    (r"10\%", "0.01"),
    ("0.1", r"1\%"),
    (r"10\%", r"0.1\%"),
    ("3xy", "3"),
    ("3s^2", "3"),
    (r"5\text{ cm}", r"6\text{ cm}"),
    ("90^\\circ", "91"),
    ("1,234", "1.234"),
    ("1234", "234"),
    ("5", "x=6"),
    ("x^2+2x+1", "(x+2)^2"),
    (r"\text{Evelyn}", "Briana"),
    (r"\text{even}", "odd"),
    (r"\text{June 20}", "June 21"),
    ("6:00", "7:00"),
    ("2516_8", "2516_9"),
    ("2516_8", "2517_8"),
    ("C", "D"),
    ("5", ""),
    ("5", r"\frac{"),
    ("5", "no solution"),
]


@pytest.fixture(scope="module")
def grader():
    settings, _ = load_settings("math")
    grader = MathGrader(settings)
    yield grader
    grader.close()


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_an_equal_answer_is_right(grader, gold, answer):
    question = Question("q", "math", "", gold)
    assert grader.judge(question, rf"So it is $\boxed{{{answer}}}$.").score == 1


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_answer_is_wrong(grader, gold, answer):
    question = Question("q", "math", "", gold)
    assert grader.judge(question, rf"So it is $\boxed{{{answer}}}$.").score == 0

import pytest

from chimera_train.errors import DataError
from chimera_train.tasks import get_task
from chimera_train.tasks.choice import chosen_letter

FIELDS = {"question": "q", "options": "o", "answer": "a"}


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (C).", "C"),
        ("The answer is C", "C"),
        ("the correct answer is: **D**", "D"),
        ("The correct answer is option B.", "B"),
        ("Answer: E", "E"),
        ("ANSWER: (E) because", "E"),
        (r"So \boxed{F}", "F"),
        (r"So $\boxed{\text{G}}$", "G"),
        (r"The answer is $\text{(H)}$", "H"),
        ("First A seems right. The answer is (B). Checking: yes, the answer is (C).", "C"),
        ("I choose option J", "J"),
        ("Let us see.\n\n**C**", "C"),
        ("C. The cell wall", "C"),
        ("(B) because of it", "B"),
        ("C", "C"),
        ("A", "A"),
        ("A. One", "A"),
        ("A train leaves the station", None),
        ("I think it rains", None),
        ("The answer is Paris", None),
        ("the answer is unclear", None),
        ("", None),
    ],
)
def test_the_letter_that_a_text_settles_on(text, letter):
    assert chosen_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"), [("\\boxed{" * 20_000 + "B", "B"), ("answer is" + " _" * 50_000, None)]
)
def test_texts_that_run_away_are_read_in_no_time(text, letter):
    assert chosen_letter(text) == letter


@pytest.mark.parametrize("answer", ["B", 1, "two"])
def test_gold_answers_are_letters_numbers_or_options(write_task, answer):
    rows = [{"q": "Which?", "o": ["one", "two", "three"], "a": answer}]
    task = get_task(write_task(rows, kind="choice", fields=FIELDS))
    (question,) = task.questions(1, 0)
    assert question.text == "Which?\nA. one\nB. two\nC. three"
    assert question.answer == "B"
    assert task.grade(question, "The answer is (B)") == 1
    assert task.judge(question, "The answer is (C)").reason == "wrong: answered C"
    assert task.grade(question, "no idea") == 0


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"o": ["one", "two"], "a": "D"}, "mapped to 'answer' .* must be one of AB"),
        ({"o": ["one", "two"], "a": 2}, "mapped to 'answer' .* must be one of AB"),
        ({"o": ["one"], "a": "A"}, "mapped to 'options' .* must be a list"),
        ({"o": "one or two", "a": "A"}, "mapped to 'options' .* must be a list"),
    ],
)
def test_questions_without_a_right_option_are_refused(write_task, row, wrong):
    task = get_task(write_task([{"q": "?", **row}], kind="choice", fields=FIELDS))
    with pytest.raises(DataError, match=wrong):
        task.questions(1, 0)

"""The arithmetic task: what is generated is what the text says, and grading never fails."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.errors import ConfigError
from chimera_train.tasks import get_task
from chimera_train.tasks.arithmetic import MAX_STEPS, generate, grade, operations, vocabulary
from chimera_train.tasks.model import Question

QUESTIONS = generate(1000, seed=11)
GAINS = ("buys", "finds", "wins", "gets", "gives", "brings")
LOSSES = ("loses", "sells", "leaves", "takes", "drops")


def read(text: str) -> int:
    """Solve a problem from its words alone, without looking at how it was made."""
    thing = re.search(r"(?:How many|number of) ([a-z]+)", text)
    hero = re.search(r"([A-Z][a-z]+) (?:has|starts with) (?:a box with )?\d+ ([a-z]+)", text)
    assert thing is not None
    assert hero is not None
    name, counted = hero[1], thing[1]
    assert counted == hero[2]
    heroes = {name, name.lower(), "he", "she", "him", "her", "He", "She"}
    total = -1
    for sentence in re.split(r"(?<=[.?])\s", text):
        if sentence.endswith("?") or sentence.startswith("Find"):
            continue
        for clause in sentence.rstrip(".").split(" and "):
            words = clause.split()
            numbers = [int(word) for word in words if word.isdigit()]
            if "years" in words:
                continue
            if "doubles" in words or "triples" in words or "times" in words:
                total *= (
                    numbers[0]
                    if numbers
                    else {"doubles": 2, "triples": 3}[
                        next(word for word in words if word in ("doubles", "triples"))
                    ]
                )
                continue
            others = [word for word in words if word[0].isupper() and word not in heroes]
            others = [w for w in others if w not in ("Then", "Later", "Soon", "After", "At", "In")]
            verb_at = next(
                i for i, word in enumerate(words) if word in (*GAINS, *LOSSES, "has", "starts")
            )
            actor_is_hero = words[verb_at - 1] in heroes
            things = [word for word in words if word.endswith("s") and word[-2:] != "ss"]
            other_things = not actor_is_hero and counted not in things and not heroes & set(words)
            if other_things and words[verb_at] in ("has", "buys"):
                continue  # somebody else's other things
            if total < 0:
                total = numbers[0]
            elif words[verb_at] == "gives":
                total += -numbers[0] if actor_is_hero else numbers[0]
            elif words[verb_at] in GAINS:
                total += numbers[0]
            else:
                total -= numbers[0]
    return total


def test_same_seed_same_questions_and_longer_lists_start_with_shorter_ones() -> None:
    assert generate(50, 3) == generate(50, 3)
    assert generate(80, 3)[:50] == generate(50, 3)
    assert [q.text for q in generate(50, 3)] != [q.text for q in generate(50, 4)]


def test_ids_texts_and_steps() -> None:
    assert [q.question_id for q in QUESTIONS[:2]] == ["arithmetic-11-0", "arithmetic-11-1"]
    assert len({q.text for q in QUESTIONS}) == len(QUESTIONS)
    counts = Counter(q.metadata["steps"] for q in QUESTIONS)
    assert set(counts) == set(range(1, MAX_STEPS + 1))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_answers_follow_from_the_words() -> None:
    for question in QUESTIONS:
        assert str(read(question.text)) == question.answer, question.text


def test_answers_follow_from_the_chain_and_its_numbers_stand_in_the_text() -> None:
    for question in QUESTIONS:
        start, chain = operations(question)
        assert len(chain) == question.metadata["steps"]
        total = start
        for operation in chain:
            total = operation.apply(total)
            assert 0 <= total <= 99
            if operation.symbol != "*":
                assert str(operation.operand) in re.findall(r"\d+", question.text)
        assert str(total) == question.answer


def test_some_questions_hold_a_number_that_does_not_matter() -> None:
    share = sum(int(q.metadata["distractors"]) for q in QUESTIONS) / len(QUESTIONS)
    assert 0.15 < share < 0.35


def test_vocabulary_is_small_and_complete() -> None:
    words = set(vocabulary())
    assert len(words) <= 200
    for question in QUESTIONS:
        assert set(re.findall(r"[A-Za-z]+", question.text)) <= words


def test_negative_count_and_foreign_question_are_refused() -> None:
    with pytest.raises(ConfigError):
        generate(-1, 0)
    with pytest.raises(ConfigError, match="chain"):
        operations(Question("x", "other", "text", "1"))
    assert generate(0, 0) == []


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("7 + 5 = 12. answer 12", 1.0),
        ("Answer: **12**.", 1.0),
        ("The ANSWER is 7 + 5 = 12", 1.0),
        ("answer 12. No, wait: answer 13", 0.0),
        ("answer 13, then answer 12", 1.0),
        ("answer 012", 1.0),
        ("answer 12 apples", 1.0),
        ("12", 0.0),
        ("12 is the answer", 0.0),
        ("answer -12", 0.0),
        ("answer 12.5", 0.0),
        ("answer 1,012", 0.0),
        ("answer 112", 0.0),
        ("answer ", 0.0),
        ("", 0.0),
        ("answer " + "9" * 100_000, 0.0),
        ("answer " + "0" * 100_000 + "12", 1.0),
        ("answer \u0661\u0662", 0.0),
        ("answer \u00b9\u00b2", 0.0),
        ("answer" * 20_000, 0.0),
        ("answer " + "1," * 50_000, 0.0),
        ("answer \ud800\x00\ufffd", 0.0),
    ],
)
def test_grade(text: str, score: float) -> None:
    assert grade(Question("q", "arithmetic", "?", "12"), text) == score


@given(st.text())
def test_grade_never_raises(text: str) -> None:
    question = Question("q", "arithmetic", "?", "12")
    assert grade(question, text) in (0.0, 1.0)
    assert grade(question, "answer" + text) in (0.0, 1.0)


def test_gold_answers_get_full_marks() -> None:
    task = get_task("arithmetic")
    for question in task.questions(100, seed=5):
        assert task.grade(question, f"so the answer is {question.answer}.") == 1.0


def test_get_task() -> None:
    assert get_task("arithmetic").name == "arithmetic"
    assert get_task("arithmetic").questions(7, 2) == generate(7, 2)
    with pytest.raises(ConfigError, match="nonsense"):
        get_task("nonsense")

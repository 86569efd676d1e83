from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.router.stability import REWRITINGS, stability

CHOICE = "Which number is prime?\nA. four\nB. five\nC. six\nD. eight\n(E) nine"
COST = np.array([1.0, 2.0])


def _rewrite(name: str, text: str, seed: int = 0) -> str:
    return REWRITINGS[name](text, np.random.default_rng(seed))


def test_typos_swap_neighbours_about_every_forty_characters() -> None:
    text = "The quick brown fox jumps over the lazy dog, and again over it." * 4
    found = _rewrite("typos", text)
    assert Counter(found) == Counter(text)
    assert 2 <= sum(a != b for a, b in zip(text, found, strict=True)) <= 2 * round(len(text) / 40)
    assert _rewrite("typos", text) == found != _rewrite("typos", text, seed=1)
    assert _rewrite("typos", "1 + 1 = ?") == "1 + 1 = ?"


def test_options_move_and_letters_stay() -> None:
    found = {_rewrite("options", CHOICE, seed) for seed in range(20)}
    assert len(found) > 5
    for text in found:
        question, *options = text.split("\n")
        assert question == "Which number is prime?"
        assert [line[:2] for line in options] == ["A.", "B.", "C.", "D.", "(E"]
        assert {line.split()[-1] for line in options} == {"four", "five", "six", "eight", "nine"}
    assert _rewrite("options", "No options here.\nNone.") == "No options here.\nNone."


def test_the_others_leave_the_words() -> None:
    for name in ("case", "white_space", "politeness"):
        words = _rewrite(name, CHOICE).lower().split()
        assert words[: len(CHOICE.split())] == CHOICE.lower().split()
        assert _rewrite(name, CHOICE) != CHOICE


def _by_first_letter(texts: Sequence[str]) -> np.ndarray:
    """Prefers the second model for texts with a capital; so only case moves it."""
    capital = np.array([any(letter.isupper() for letter in text) for text in texts])
    return np.column_stack([np.where(capital, 0.2, 0.8), np.full(len(texts), 0.5)])


def test_flips_are_counted_among_the_texts_that_change() -> None:
    texts = ["One apple", "two apples", "Three apples", "4"]
    figures = stability(_by_first_letter, texts, COST)
    assert list(figures) == list(REWRITINGS)
    assert figures["case"]["texts"] == 2
    assert figures["case"]["flips"] == 1
    assert figures["case"]["confidence_change"] == pytest.approx(0.3)
    assert 0 < figures["case"]["flips_at_prices"] <= 1
    assert figures["white_space"]["texts"] == 4
    assert figures["white_space"]["flips"] == figures["white_space"]["confidence_change"] == 0
    assert figures["options"] == {
        "texts": 0,
        "flips": None,
        "flips_at_prices": None,
        "confidence_change": None,
    }


def test_unknown_costs_leave_the_plain_choice() -> None:
    figures = stability(_by_first_letter, ["One apple"], np.array([1.0, np.nan]))
    assert figures["case"]["flips"] == 1
    assert figures["case"]["flips_at_prices"] is None


@given(st.lists(st.text(), min_size=1, max_size=5))
def test_any_text_can_be_rewritten(texts: list[str]) -> None:
    figures = stability(lambda texts: np.full((len(texts), 2), 0.5), texts, COST)
    assert {of["flips"] for of in figures.values()} <= {0, None}

"""Numbers counted in a text, against a text counted by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.predict.text_columns import TEXT_COLUMNS, text_columns

QUESTION = """Is f(x) = 3*x + 12 odd, or even? Take x = 1,250.

A. 3 ways
B) none at all
(C) it is 12
Go on."""


def named(text: str) -> dict[str, float]:
    return dict(zip(TEXT_COLUMNS, text_columns(text).tolist(), strict=True))


def test_a_question_with_options_counted_by_hand() -> None:
    stem = "Is f(x) = 3*x + 12 odd, or even? Take x = 1,250."
    values = named(QUESTION)
    expected = {
        "stem_characters": len(stem),
        "stem_digits": 7,  # 3, 12, 1,250
        "stem_upper": 2,
        "stem_operators": 4,  # = * + =
        "stem_brackets": 2,
        "stem_sentences": 2,
        "stem_questions": 1,
        "stem_commas": 2,
        "stem_newlines": 0,
        "stem_words": 13,  # is f x 3 x 12 odd or even take x 1 250
        "stem_distinct_words": 11,
        "stem_numbers": 4,
        "stem_distinct_numbers": 4,
        "text_characters": len(QUESTION),
        "text_digits": 10,
        "text_upper": 6,
        "text_newlines": 5,
        "text_sentences": 4,
        "text_commas": 2,
        "lines": 5,
        "longest_line": len(stem),
        "first_line": len(stem),
        "last_line": len("Go on."),
        "shortest_line": len("Go on."),
        "options": 3,
        "largest_number": 1250,
    }
    assert {name: values[name] for name in expected} == expected
    lengths = [len(line) for line in QUESTION.split("\n") if line]
    assert values["mean_line"] == pytest.approx(np.mean(lengths))
    # Without their first three characters: "3 ways", "none at all", " it is 12".
    assert values["mean_option"] == pytest.approx((6 + 11 + 9) / 3)
    assert values["option_deviation"] == pytest.approx(np.std([6, 11, 9]))
    assert values["numeric_options"] == pytest.approx(2 / 3)


def test_a_text_without_options_is_its_own_stem() -> None:
    values = named("Add 3 and 3.")
    for name in TEXT_COLUMNS:
        if name.startswith("stem_"):
            assert values[name] == values[name.replace("stem_", "text_")]
    assert (values["text_numbers"], values["text_distinct_numbers"]) == (2, 1)
    assert (values["options"], values["mean_option"], values["largest_number"]) == (0, 0, 3)


def test_a_stem_ends_at_a_blank_line_that_is_not_the_first() -> None:
    assert named("\n\nWhat?\n \nThe history.")["stem_characters"] == len("\n\nWhat?")


def test_nothing_is_all_zeros() -> None:
    assert not text_columns("").any()


def test_numbers_too_long_to_be_quantities_are_left_out() -> None:
    assert named("order " + "9" * 400 + ", 12 pieces")["largest_number"] == 12


@given(st.text(st.characters()) | st.text("A.) (\n\r0123,٣²½\ud800"))
def test_any_text_gives_finite_numbers(text: str) -> None:
    values = text_columns(text)
    assert values.dtype == np.float32
    assert values.shape == (len(TEXT_COLUMNS),)
    assert np.isfinite(values).all()
    assert (values >= 0).all()

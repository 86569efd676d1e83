import pytest

from chimera_train.workflows.fan_out import items, numbered


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1. one\n2. two", ["one", "two"]),
        ("1) one\n\n  (2) two  \n", ["one", "two"]),
        ("- one\n* two\n• three", ["one", "two", "three"]),
        ("a) one\nB. two", ["one", "two"]),
        ("one\ntwo", ["one", "two"]),
        ("12\n3.5 apples\n-7", ["12", "3.5 apples", "-7"]),
        ("A cat\nI see", ["A cat", "I see"]),
        ("", []),
        ("\n \n", []),
        ("1. \n2. two", ["two"]),
    ],
)
def test_items_are_lines_without_their_numbering(text, expected):
    assert items(text, 9) == expected


def test_items_end_at_the_maximum():
    assert items("a b\nc d\ne f", 2) == ["a b", "c d"]


def test_outputs_are_numbered_and_split_again():
    assert numbered(["one", "two"]) == "1. one\n\n2. two"
    assert items(numbered(["one", "two"]), 5) == ["one", "two"]
    assert numbered([]) == ""

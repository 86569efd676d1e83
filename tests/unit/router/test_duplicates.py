import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.router.duplicates import near_duplicate_groups


def _sentence(rng: np.random.Generator, n: int = 40) -> list[str]:
    return [f"w{i}" for i in rng.integers(0, 5000, n)]


def _similarity(a: list[str], b: list[str]) -> float:
    runs = [{tuple(words[i : i + 3]) for i in range(len(words) - 2)} for words in (a, b)]
    return len(runs[0] & runs[1]) / len(runs[0] | runs[1])


def test_agrees_with_jaccard_by_definition() -> None:
    """Pairs of which one to four words differ, at both sides of 0.8."""
    rng = np.random.default_rng(0)
    texts, similar = [], []
    for pair in range(100):
        first = _sentence(rng)
        second = list(first)
        for position in rng.choice(len(first), size=1 + pair % 4, replace=False):
            second[position] = "changed"
        texts += [" ".join(first), " ".join(second)]
        similar.append(_similarity(first, second) >= 0.8)
    groups = near_duplicate_groups(texts).reshape(-1, 2)
    assert 10 < sum(similar) < 90
    np.testing.assert_array_equal(groups[:, 0] == groups[:, 1], similar)
    assert len(np.unique(groups)) == 200 - sum(similar)


def test_chains_are_one_group_named_by_its_first_text() -> None:
    rng = np.random.default_rng(1)
    words = _sentence(rng, 60)
    steps = []
    for position in (5, 25, 45):  # each is like the one before, the last not like the first
        words = [*words]
        words[position] = "changed"
        steps.append(" ".join(words))
    other = " ".join(_sentence(rng))
    np.testing.assert_array_equal(near_duplicate_groups([other, *steps]), [0, 1, 1, 1])


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        ([], []),
        (["", "?!", "two words", "Two  words!"], [0, 0, 2, 2]),
        (["yes", "no"], [0, 1]),
        (["1 2 3", "1 2 4"], [0, 1]),
    ],
)
def test_short_texts(texts: list[str], groups: list[int]) -> None:
    np.testing.assert_array_equal(near_duplicate_groups(texts), groups)


def test_a_common_template_makes_no_duplicates() -> None:
    rng = np.random.default_rng(2)
    template = " ".join(_sentence(rng, 300))
    texts = [f"{template} {' '.join(_sentence(rng, 10))}" for _ in range(50)]
    assert len(np.unique(near_duplicate_groups(texts))) == 50
    again = [*texts, f"{texts[7]} please"]
    assert near_duplicate_groups(again)[-1] == 7


@given(st.lists(st.text("ab c", max_size=12), max_size=12))
def test_groups_are_named_by_members_of_their_own(texts: list[str]) -> None:
    groups = near_duplicate_groups(texts)
    assert (groups <= np.arange(len(texts))).all()
    np.testing.assert_array_equal(groups[groups], groups)

"""Scorers against figures computed by hand, and what they refuse."""

from pathlib import Path

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.files import write_json
from chimera_train.predict.arrays import save_arrays
from chimera_train.predict.router_neighbours import (
    Neighbour,
    Neighbours,
    NeighbourScorer,
    Question,
    load_questions,
    save_questions,
)
from chimera_train.predict.router_scorers import (
    BoostedScorer,
    PriorScorer,
    TermScorer,
    log_odds,
)
from chimera_train.predict.text import TextSketch
from chimera_train.predict.trees import TreeSums

SKETCH = TextSketch(["a", "b", "c"], np.ones(3, np.float32), np.eye(3, dtype=np.float32))
NAN = np.nan


def test_a_term_weighs_what_its_coefficient_says() -> None:
    coefficients = np.array([[1, 0], [0, -2], [0, 0]], dtype=np.float32)
    scorer = TermScorer(SKETCH, coefficients, np.array([0.5, 0.0]))
    np.testing.assert_allclose(
        scorer.logits(["a", "b", "a b", "?"]),
        [[1.5, 0], [0.5, -2], [0.5 + 0.5**0.5, -2 * 0.5**0.5], [0.5, 0]],
        rtol=1e-6,
    )


def test_neighbours_are_the_most_similar_graded_questions() -> None:
    success = np.array([[1.0, NAN], [0.0, 1.0], [0.5, 0.0]])
    neighbours = Neighbours.of(SKETCH, ["a", "a b", "c"], success)
    assert neighbours.nearest("a", 2) == [
        Neighbour(0, pytest.approx(1.0)),
        Neighbour(1, pytest.approx(0.5**0.5)),
    ]
    assert neighbours.nearest("unknown", 2) == []
    prior = np.array([0.5, 0.75])
    one = NeighbourScorer(neighbours, 1, prior).logits(["a", "c", "unknown"])
    # Each counts as much as the prior; for the second model "a" was not graded, "a b" is next.
    expected = [[(1 + 0.5) / 2, (1 + 0.75) / 2], [(0.5 + 0.5) / 2, 0.75 / 2], prior]
    np.testing.assert_allclose(one, log_odds(expected), atol=1e-6)
    everything = NeighbourScorer(neighbours, 99, prior).logits(["a"])
    np.testing.assert_allclose(everything, log_odds([[2 / 4, 1.75 / 3]]), atol=1e-6)


def test_questions_survive_a_round_trip(tmp_path: Path) -> None:
    questions = [Question(question_id="q1", text="1 + 1"), Question(question_id="q2", text=None)]
    save_questions(tmp_path, questions)
    assert load_questions(tmp_path) == questions
    write_json(tmp_path / "neighbours.json", {"questions": [{"text": "no id"}]})
    with pytest.raises(DataError, match=r"neighbours.json: questions\.0\.question_id"):
        load_questions(tmp_path)


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    ones = np.ones((3, 2), dtype=np.float32)
    neighbours = Neighbours.of(SKETCH, ["a"], np.array([[1.0]]))
    leaf = TreeSums(
        np.array([0, 1], np.int32), np.array([0], np.int32), np.array([99], np.int32), np.zeros(1),
        np.array([~0], np.int32), np.array([~0], np.int32), np.zeros(1),
    )  # fmt: skip
    save_arrays(tmp_path / "knn.npz", {"k": np.array([3]), "prior": np.array([0.5])})
    for damaged in (
        lambda: PriorScorer(np.array([np.inf])),
        lambda: TermScorer(SKETCH, ones[:2], np.zeros(2)),
        lambda: TermScorer(SKETCH, ones, np.zeros(3)),
        lambda: Neighbours(SKETCH, np.ones((2, 3), np.float32), np.ones((1, 1))),
        lambda: Neighbours(SKETCH, np.ones((1, 2), np.float32), np.ones((1, 1))),
        lambda: Neighbours(SKETCH, np.ones((1, 3), np.float32), np.full((1, 1), 1.5)),
        lambda: NeighbourScorer(neighbours, 0, np.array([0.5])),
        lambda: NeighbourScorer(neighbours, 1, np.array([1.0])),
        lambda: NeighbourScorer.load(tmp_path, SKETCH),
        lambda: BoostedScorer(SKETCH, leaf),
    ):
        with pytest.raises(DataError, match="fit again"):
            damaged()

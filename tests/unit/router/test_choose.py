from pathlib import Path

import numpy as np
import pytest

from chimera_train.predict.calibration import Calibration
from chimera_train.predict.router import Router
from chimera_train.predict.router_scorers import PriorScorer
from chimera_train.router.choose import choose
from chimera_train.router.labels import RouterData
from chimera_train.router.settings import RouterSettings


class Table:
    """Logits by text."""

    n_outputs = 2

    def __init__(self, of: dict[str, list[float]]) -> None:
        self._of = of

    def logits(self, texts: list[str]) -> np.ndarray:
        return np.array([self._of[text] for text in texts])

    def save(self, directory: Path) -> None:
        raise NotImplementedError


def router(of: dict[str, list[float]]) -> Router:
    return Router(Table(of), Calibration.identity(["small", "large"]))


DATA = RouterData(
    models=("small", "large"),
    question_ids=np.array(list("abcd"), dtype=object),
    texts=list("abcd"),
    # Nobody solves a; b is for the large one only, c for both, d for the small one only.
    success=np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
    latency_ms=np.array([1.0, 10.0]),
)
# The one knows which question needs the large model, the other which are hard for both.
PAYS = router({"a": [1, 1], "b": [0, 9], "c": [2, 2], "d": [0.5, 0.5]})
RANKS = router({"a": [-9, -9], "b": [-1, -1], "c": [1, 1], "d": [1, 1]})
PRIOR = Router(PriorScorer(np.zeros(2)), Calibration.identity(["small", "large"]))


def test_the_best_by_the_criterion_is_kept_and_the_reason_said() -> None:
    routers = {"prior": PRIOR, "knn": RANKS, "boosted": PAYS}
    by_gain = choose(routers, DATA, RouterSettings())
    assert by_gain.kind == "boosted"
    assert by_gain.reason.startswith("Kept boosted: routing gain 1.000 on the validation questions")
    by_map = choose(routers, DATA, RouterSettings(criterion="map"))
    assert by_map.kind == "knn"
    assert set(by_map.candidates) == set(routers)
    assert by_map.candidates["knn"]["map_macro"] == 1.0


def test_a_difference_that_may_be_chance_leaves_the_choice_to_average_precision() -> None:
    """One kind routes two questions better, the other one, and that ranks the questions too."""
    texts = [f"{i}" for i in range(40)]
    solved = np.arange(40) % 2 == 0
    success = np.column_stack([solved & (np.arange(40) % 8 > 0), solved]).astype(float)
    data = RouterData(DATA.models, np.array(texts, dtype=object), texts, success, DATA.latency_ms)
    ranks = {
        text: [4.0 * a - 2, 4.0 * b - 2.5] for text, (a, b) in zip(texts, success, strict=True)
    }
    routes = {text: [0.0, float(b > a)] for text, (a, b) in zip(texts, success, strict=True)}
    ranks |= {"8": [2.0, 2.0], "16": [2.0, 2.0]}
    routes["24"] = [0.0, 0.0]
    choice = choose({"knn": router(routes), "boosted": router(ranks)}, data, RouterSettings())
    assert choice.candidates["knn"]["routing_gain"] > choice.candidates["boosted"]["routing_gain"]
    assert choice.kind == "boosted"
    assert "not clearly different from knn" in choice.reason


def test_of_equals_the_first_is_kept() -> None:
    assert choose({"prior": PRIOR, "knn": PRIOR}, DATA, RouterSettings()).kind == "prior"


def test_what_was_asked_for_is_kept() -> None:
    routers = {"prior": PRIOR, "boosted": PAYS}
    assert choose(routers, DATA, RouterSettings(kind="prior")).kind == "prior"


def test_without_a_price_average_precision_decides() -> None:
    free = RouterData(DATA.models, DATA.question_ids, DATA.texts, DATA.success, np.full(2, np.nan))
    choice = choose({"prior": PRIOR, "knn": RANKS, "boosted": PAYS}, free, RouterSettings())
    assert choice.kind == "knn"
    assert "routing gain is not defined" in choice.reason
    assert choice.candidates["boosted"]["routing_gain"] is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, False),
        ({"encoder": "small"}, True),
        ({"kind": "encoder"}, True),
        ({"kind": "knn", "encoder": "small"}, False),
    ],
)
def test_an_encoder_is_trained_where_it_is_asked_for(given: dict, expected: bool) -> None:
    assert RouterSettings(**given).trains_encoder == expected

"""Intervals that hold what they promise on data exchangeable with the training data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.length.calibration import (
    LEAST_ROWS,
    calibrated,
    covered,
    observed_cells,
    reserved,
)
from chimera_train.length.estimators import fit_estimators
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import BoostedSettings, LengthSettings
from chimera_train.predict.cells import Cell, Cells
from chimera_train.predict.features import Features
from chimera_train.predict.length import LengthPredictor

BOOSTED = {
    "estimator": "boosted",
    "boosted": BoostedSettings(n_rounds=20, learning_rate=0.2, min_samples_leaf=2),
}


class Constant:
    """An estimator that predicts 100 tokens, whatever the quantile: intervals without width."""

    min_features = 0

    def quantiles_above(self, X: Any, quantiles: Any, above: Any) -> np.ndarray:
        return np.full((len(X), len(quantiles)), np.log1p(100.0))

    def spread(self, X: Any) -> np.ndarray:
        return np.zeros(len(X))


def rows(
    n: int, rng: np.random.Generator, builder: Any, stage_sizes: tuple[int, ...] = (1,)
) -> Any:
    """Programs of exchangeable lengths; every ``size``-th has one stage more for each size."""
    for number in range(n):
        stages = sum(number % size == 0 for size in stage_sizes)
        lengths = np.rint(rng.lognormal(4.6, 0.8, size=stages)).astype(int).tolist()
        builder.add(f"q{number}", "text", lengths, model="m")
    return stage_rows(builder.traces(), "stage")


def of_constant(fitted: pd.DataFrame, kept: pd.DataFrame) -> Any:
    features = Features(["math"], ["solve", "verify"], ["m"], None)
    bounds = {"m": covered(features, Constant(), "m", fitted)}
    cells = Cells(observed_cells(fitted))
    predictor = LengthPredictor(features, {"m": Constant()}, cells, bounds, {"m": 0})
    return calibrated(predictor, predictor, kept)


def test_an_eighth_of_the_questions_is_reserved() -> None:
    questions = pd.Series([f"q{number}" for number in range(8000)])
    assert reserved(questions).mean() == pytest.approx(1 / 8, abs=0.02)
    np.testing.assert_array_equal(reserved(questions[:9]), reserved(questions)[:9])


def test_an_estimator_that_knows_nothing_gets_intervals_that_cover(builder: Any) -> None:
    """In expectation at most a tenth lies beyond each end, whatever the estimator does."""
    rng = np.random.default_rng(0)
    table = rows(3000, rng, builder)
    beyond = []
    for draw in range(60):
        shuffled = table.sample(frac=1, random_state=draw)
        predictor = of_constant(table, shuffled[:120])
        low, high = predictor.predict("m", stage_requests(shuffled[120:121]), (0.1, 0.9))[0]
        truth = shuffled["target_tokens"][120:]
        beyond.append([(truth < low).mean(), (truth > high).mean()])
    mean, error = np.mean(beyond, axis=0), np.std(beyond, axis=0, ddof=1) / np.sqrt(len(beyond))
    assert (mean <= 0.1 + 2 * error).all()
    assert (mean >= 0.06).all()  # and no wider than needed


def test_the_median_stays_where_it_is(builder: Any) -> None:
    table = rows(300, np.random.default_rng(0), builder)
    low, median, high = of_constant(table, table).predict(
        "m", stage_requests(table[:1]), (0.1, 0.5, 0.9)
    )[0]
    assert low < median == 100 < high


def test_a_cell_with_few_rows_is_moved_like_the_wider_one(builder: Any) -> None:
    table = rows(400, np.random.default_rng(0), builder, (1, 40))
    rare = table[table["stage"] == "verify"]
    assert len(rare) == 10 < LEAST_ROWS
    predictor = of_constant(table, table)
    cells: dict[Any, Cell] = {(c.workflow, c.stage): c for c in predictor.cells.cells if c.model}
    moved = {key: (cell.low, cell.high) for key, cell in cells.items()}
    assert moved["math", "verify"] == moved["math", None] == moved[None, None]
    assert moved["math", "solve"] != moved["math", None]
    assert moved["math", "solve"][0] < 0 < moved["math", "solve"][1]


def test_with_too_few_reserved_rows_nothing_is_moved(builder: Any) -> None:
    table = rows(100, np.random.default_rng(0), builder)
    for kept in (table[:0], table[:19]):
        predictor = of_constant(table, kept)
        assert {(cell.low, cell.high) for cell in predictor.cells.cells} == {(0.0, 0.0)}


@pytest.mark.parametrize("estimator", [{}, BOOSTED])
@pytest.mark.parametrize("per_model", [True, False])
def test_fitted_intervals_hold_four_lengths_in_five(
    learnable: Callable[..., Any],
    quick: LengthSettings,
    estimator: dict[str, Any],
    per_model: bool,
) -> None:
    settings = quick.model_copy(update={**estimator, "per_model": per_model})
    predictor = fit_estimators(stage_rows(learnable(600).traces()), settings).predictor
    unseen = stage_rows(learnable(300, seed=1, prefix="new").traces())
    for model, own in unseen.groupby("model"):
        found = predictor.predict(str(model), stage_requests(own), (0.1, 0.9))
        truth = own["target_tokens"].to_numpy()
        # Less than 100 reserved rows leave the share so uncertain.
        assert (truth < found[:, 0]).mean() <= 0.16
        assert (truth > found[:, 1]).mean() <= 0.16

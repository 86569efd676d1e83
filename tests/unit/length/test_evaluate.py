from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.length.evaluate import MIN_QUESTIONS, cross_validate, judge, require_enough
from chimera_train.length.rows import stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.output import Output
from chimera_train.traces.split import fold


def judged() -> pd.DataFrame:
    """Two models, one right and one reversed, in two folds."""
    truth = [1.0, 2, 3, 4]
    rows = []
    for number in (0, 1):
        for model, order in (("right", truth), ("wrong", truth[::-1])):
            for position in range(4):
                rows.append(
                    {
                        "program_id": f"{model}{number}{position}", "fold": number, "model": model,
                        "stage": "solve" if position < 2 else "verify",
                        "target_tokens": truth[position], "predicted": order[position],
                        "0.1": 0.0, "0.5": order[position], "0.9": 4.0,
                        "fcfs": position, "prompt_length": -position, "stage_mean": 1.0,
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_figures_have_their_documented_shape_and_values() -> None:
    figures = judge(judged(), seed=0)
    assert set(figures) == {
        "n_programs", "kendall_distance", "baselines", "baselines_per_model", "coverage", "pinball",
    }  # fmt: skip
    assert figures["n_programs"] == 16
    distance = figures["kendall_distance"]
    assert distance["per_model"] == {"right": 0, "wrong": 1}
    assert distance["overall"] == pytest.approx(0.5)
    assert set(distance["per_stage"]) == {"solve", "verify"}
    assert distance["ci"][0] <= 0.5 <= distance["ci"][1]
    assert figures["baselines"] == pytest.approx({"fcfs": 0, "prompt_length": 1, "stage_mean": 0.5})
    assert figures["baselines_per_model"]["wrong"] == pytest.approx(
        {"fcfs": 0, "prompt_length": 1, "stage_mean": 0.5}
    )
    assert figures["coverage"]["0.1"]["overall"] == 0
    assert figures["coverage"]["0.5"]["per_model"] == {"right": 1, "wrong": 0.5}
    assert figures["coverage"]["0.9"]["per_stage"] == {"solve": 1, "verify": 1}
    assert figures["pinball"]["0.5"]["per_model"] == pytest.approx({"right": 0, "wrong": 1})
    assert figures["pinball"]["0.1"]["overall"] == pytest.approx(0.25)


def test_the_forest_beats_the_baselines_on_learnable_lengths(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output
) -> None:
    figures = cross_validate(stage_rows(learnable().traces()), quick, output)
    forest, baselines = figures["kendall_distance"]["overall"], figures["baselines"]
    assert forest < baselines["stage_mean"] - 0.03
    assert baselines["stage_mean"] < baselines["prompt_length"]
    assert baselines["fcfs"] == pytest.approx(0.5, abs=0.06)
    assert figures["n_programs"] == 120


def test_no_question_is_predicted_from_itself(
    builder: Any, quick: LengthSettings, output: Output
) -> None:
    """Each question has its own length, which only its other samples reveal."""
    rng = np.random.default_rng(0)
    for number in range(100):
        length = int(rng.integers(1, 1000))
        for sample in range(2):
            builder.add(f"q{number}", f"word{number}", [length], sample=sample)
    quick = quick.model_copy(update={"sketch_components": 80, "max_features": 1.0})
    figures = cross_validate(stage_rows(builder.traces()), quick, output)
    assert figures["kendall_distance"]["overall"] == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("too_few", [MIN_QUESTIONS - 1, 1])
def test_says_how_many_questions_are_needed(learnable: Callable[..., Any], too_few: int) -> None:
    rows = stage_rows(learnable(too_few).traces())
    with pytest.raises(DataError, match=rf"for {too_few} questions.*at least {MIN_QUESTIONS}"):
        require_enough(rows)


def test_every_fold_needs_questions(builder: Any) -> None:
    elsewhere = [f"q{number}" for number in range(200) if fold(f"q{number}") != 3]
    for question in elsewhere:
        builder.add(question, "text", [5])
    with pytest.raises(DataError, match="in 4 of 5 folds"):
        require_enough(stage_rows(builder.traces()))


def test_enough_for_one_model_is_not_enough_for_another(learnable: Callable[..., Any]) -> None:
    builder = learnable(60)
    builder.add("q1", "text", [5], model="rare")
    with pytest.raises(DataError, match="Model 'rare'"):
        require_enough(stage_rows(builder.traces()))

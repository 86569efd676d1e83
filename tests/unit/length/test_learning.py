import json

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.length.estimators import fit_estimators
from chimera_train.length.learning import learning_curve
from chimera_train.length.rows import stage_rows


def test_more_programs_are_better_until_they_are_enough(learnable, quick, output):
    rows = stage_rows(learnable(400, ("package:small",)).traces())
    quick = quick.model_copy(update={"n_estimators": 4})
    curve = learning_curve(rows, quick, output)
    json.dumps(curve, allow_nan=False)
    points = curve["points"]
    questions = [point["questions"] for point in points]
    assert len(points) == 4
    assert all(np.diff(questions) > 0)
    assert questions[0] >= 25
    assert points[-1]["questions"] == pytest.approx(320, abs=25)
    assert points[-1]["kendall_distance"] < points[-1]["stage_median"]
    for point in points:
        assert point["kendall_distance"] == pytest.approx(np.mean(point["draws"]))
        assert point["programs"] == point["questions"]
    prompt_length = [point["prompt_length"] for point in points]
    assert prompt_length == pytest.approx([prompt_length[0]] * 4), "it learns nothing"
    within = [p["programs"] for p in points[:-1]
              if p["kendall_distance"] <= points[-1]["kendall_distance"] + 0.005]  # fmt: skip
    assert curve["enough_programs"] == (within[0] if within else None)


def test_what_is_fitted_on_are_whole_unseen_questions(learnable, quick, output):
    rows = stage_rows(learnable(200).traces())
    seen = []

    def fit(training, settings):
        seen.append(training)
        return fit_estimators(training, settings)

    learning_curve(rows, quick, output, fit)
    of_question = rows.groupby("question_id").size()
    for training in seen:
        assert training["fold"].nunique() < 5
        in_training = training.groupby("question_id").size()
        assert in_training.equals(of_question[in_training.index])
    three_largest = [set(training["question_id"]) for training in seen[:3]]
    for n, largest in enumerate(three_largest):
        for smaller in seen[n::3]:
            assert set(smaller["question_id"]) <= largest


def test_sets_that_lack_a_model_are_left_out(builder, quick, output):
    for number in range(300):
        builder.add(f"q{number}", "some text", [number % 7 + 3], model="common")
    for number in range(300, 330):
        builder.add(f"q{number}", "some text", [number % 7 + 3], model="rare")
    points = learning_curve(stage_rows(builder.traces()), quick, output)["points"]
    assert 1 <= len(points) <= 4


def test_too_few_questions_are_refused(learnable, quick, output):
    with pytest.raises(DataError, match="at least 25 questions"):
        learning_curve(stage_rows(learnable(10).traces()), quick, output)

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.length.estimators import fit_estimators
from chimera_train.length.evaluate import (
    MIN_QUESTIONS,
    cross_validate,
    evaluate_length,
    predict_others,
    predict_unseen,
    require_enough,
)
from chimera_train.length.judge import QUANTILES, judge
from chimera_train.length.rows import stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import write_length
from chimera_train.output import Output
from chimera_train.traces.split import HOLDOUT_FOLD, fingerprints, fold


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


def test_figures_are_those_of_the_rows_that_plots_draw(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output
) -> None:
    rows = stage_rows(learnable(40).traces())
    judged = predict_unseen(rows, quick, output)
    assert sorted(judged["program_id"]) == sorted(rows["program_id"])
    assert {"predicted", "stage_median", *map(str, QUANTILES)} <= set(judged)
    assert judge(judged, quick.seed) == cross_validate(rows, quick, output)


def test_a_fitted_predictor_is_judged_on_other_traces(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    rows = stage_rows(learnable(60).traces())
    predictor = fit_estimators(rows, quick).predictor
    known = fingerprints(rows["question_id"])
    others = stage_rows(learnable(30, seed=1, prefix="other").traces())
    judged = predict_others(others, predictor, known, seed=0)
    assert len(judged) == len(others)
    figures = judge(judged, seed=0)
    assert figures["kendall_distance"]["overall"] < figures["baselines"]["stage_median"]
    one_fold = others[others["fold"] == others["fold"].iloc[0]]
    with pytest.raises(DataError, match="more questions"):
        predict_others(one_fold, predictor, known, seed=0)


def test_a_fitted_predictor_is_not_judged_on_what_it_was_fitted_on(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    rows = stage_rows(learnable(60).traces())
    is_training = rows["fold"] != HOLDOUT_FOLD
    training = rows[is_training]
    predictor = fit_estimators(training, quick).predictor
    known = fingerprints(training["question_id"])
    judged = predict_others(rows, predictor, known, seed=0)
    assert judged["program_id"].tolist() == rows.loc[~is_training, "program_id"].tolist()
    median = training.groupby(["stage", "model"])["target_tokens"].median()
    assert [*judged["stage_median"]] == [
        median[key] for key in zip(judged["stage"], judged["model"], strict=True)
    ]
    with pytest.raises(DataError, match="fitted on every question of these traces"):
        predict_others(training, predictor, known, seed=0)


@pytest.fixture
def directory(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> Path:
    rows = stage_rows(learnable(30).traces())
    fitted = fit_estimators(rows, quick)
    write_length(tmp_path / "length", fitted, quick, {}, rows["question_id"])
    return tmp_path / "length"


@pytest.mark.parametrize(
    ("column", "name", "told"),
    [("model", "new/model", "model 'new/model'"), ("workflow", "other", "workflow 'other'")],
)
def test_names_that_were_not_fitted_are_judged_by_what_stands_in(
    learnable: Callable[..., Any],
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    column: str,
    name: str,
    told: str,
) -> None:
    builder = learnable(30, prefix="other")
    for program in builder.programs[::2]:
        program[column] = name
    judged, figures = evaluate_length(directory, builder.traces(), Output(quiet=True))
    assert f"was not fitted on {told}: its lengths are predicted by" in capsys.readouterr().err
    json.dumps(figures, allow_nan=False)
    assert figures["kendall_distance"][f"per_{column}"][name] is not None
    assert not judged[["predicted", "0.1", "0.9", "stage_median"]].isna().any(axis=None)


def test_few_programs_and_lengths_of_nothing_are_judged(builder: Any, directory: Path) -> None:
    builder.add("q0", "add", [5, 3])
    builder.add("new", "", [0])
    judged, figures = evaluate_length(directory, builder.traces(), Output(quiet=True))
    json.dumps(figures, allow_nan=False)
    assert judged["question_id"].tolist() == ["new"]
    assert figures["kendall_distance"]["overall"] == 0.5


def changed(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "length.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(schema_version=1), "schema version 1, older than the supported 2"),
        (lambda m: m.update(schema_version=99), "newer than the supported 2"),
        (lambda m: m["features"].update(version=1), "version 1 of the features"),
        (lambda m: m["features"]["columns"].pop(), r"other features .*\(score\)"),
        (lambda m: m["features"]["columns"].reverse(), r"other features .*\(another order\)"),
        (lambda m: m.update(pooled=True), r"other features .*\(model=package:large\)"),
        (lambda m: m.update(sketch=None), "other features"),
        (lambda m: m.update(sketch="encoder"), r"encoder\.npz does not exist"),
        (lambda m: m.update(estimator="boosted"), r"package-large\.npz"),
        (lambda m: m["sha256"].update({"cells.json": "0"}), "was altered"),
        (lambda m: m["sha256"].update({"../secret": "0"}), "lacks '../secret'"),
        (lambda m: m.pop("models"), "models: field required"),
    ],
)
def test_a_directory_that_is_not_as_it_was_written_is_refused(
    learnable: Callable[..., Any],
    output: Output,
    directory: Path,
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    changed(directory, change)
    traces = learnable(5, prefix="other").traces()
    with pytest.raises(DataError, match=message):
        evaluate_length(directory, traces, output)


@pytest.mark.parametrize("name", ["length.json", "questions.npz", "package-small.npz"])
@pytest.mark.parametrize("content", [None, b"", b"PK", b"{"])
def test_a_damaged_file_is_refused_by_its_name(
    learnable: Callable[..., Any],
    output: Output,
    directory: Path,
    name: str,
    content: bytes | None,
) -> None:
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    traces = learnable(5, prefix="other").traces()
    with pytest.raises(DataError, match=name):
        evaluate_length(directory, traces, output)


def test_a_stage_not_seen_in_training_has_the_baselines_of_all(
    builder: Any, quick: LengthSettings, output: Output
) -> None:
    for number in range(60):
        builder.add(f"q{number}", "text", [10 + number] if number else [10, 5])
    judged = predict_unseen(stage_rows(builder.traces()), quick, output)
    rare = judged[judged["stage"] == "verify"]
    assert rare["stage_median"].tolist() == pytest.approx([39.5], abs=8)
    assert not judged[["predicted", "stage_mean", "stage_median"]].isna().any(axis=None)

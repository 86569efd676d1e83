import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.length.fit import fit_and_write
from chimera_train.length.settings import BoostedSettings, LengthSettings
from chimera_train.output import Output
from chimera_train.predict.features import StageRequest
from chimera_train.predict.length import LengthPredictor
from chimera_train.traces.split import HOLDOUT_FOLD, fold

QUICK_BOOSTED = BoostedSettings(n_rounds=8, learning_rate=0.3, min_samples_leaf=2)
REQUEST = StageRequest("math", "solve", "add then double", 11, 12, 30)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_writes_what_the_runtime_loads(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    directory = tmp_path / "out" / "length"
    metrics = fit_and_write(learnable().traces(), directory, quick, output).metrics
    assert set(contents(directory)) == {
        "cells.json", "length.json", "metrics.json", "model_card.md", "package-large.npz",
        "package-small.npz", "questions.npz", "sketch.npz", "vocabulary.json",
    }  # fmt: skip
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["length"]
    assert json.loads((directory / "metrics.json").read_text()) == metrics
    manifest = json.loads((directory / "length.json").read_text())
    assert manifest["metrics"] == metrics
    assert manifest["settings"] == quick.model_dump()

    predictor = LengthPredictor.load(directory)
    assert predictor.models == ("package:large", "package:small")
    assert predictor.template_overhead_tokens("package:small") == 7
    large, small = (predictor.predict(model, [REQUEST])[0, 0] for model in predictor.models)
    assert large > small
    longer = replace(REQUEST, text="add then double then halve then add then add")
    assert predictor.predict("package:small", [longer])[0, 0] > small


@pytest.mark.parametrize("estimator", ["forest", "boosted"])
def test_the_same_seed_writes_the_same_bytes(
    learnable: Callable[..., Any],
    quick: LengthSettings,
    output: Output,
    tmp_path: Path,
    estimator: str,
) -> None:
    quick = quick.model_copy(update={"estimator": estimator, "boosted": QUICK_BOOSTED})
    traces = learnable(30).traces()
    fit_and_write(traces, tmp_path / "a", quick, output)
    fit_and_write(traces, tmp_path / "b", quick.model_copy(update={"n_jobs": 2}), output)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    tell_the_settings = {"length.json", "model_card.md"}
    assert {name for name in a if a[name] != b[name]} == tell_the_settings


def test_the_holdout_is_never_fitted_on(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    builder = learnable(40)
    fit_and_write(builder.traces(), tmp_path / "a", quick, output)
    held_out = {p["program_id"] for p in builder.programs if fold(p["question_id"]) == HOLDOUT_FOLD}
    assert held_out
    for stage in builder.stages:
        if stage["program_id"] in held_out:
            stage.update(output_tokens=999, user_text="quite another text", prompt_tokens=77)
    for program in builder.programs:
        if program["program_id"] in held_out:
            program["total_output_tokens"] = 999 * program["n_stages"]
    fit_and_write(builder.traces(), tmp_path / "b", quick, output)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    changed = {name for name in a if a[name] != b[name]}
    # The figures, not the forests.
    assert changed == {"length.json", "metrics.json", "model_card.md"}
    manifests = [json.loads(files["length.json"]) for files in (a, b)]
    for manifest in manifests:
        manifest.pop("metrics")
    assert manifests[0] == manifests[1]


def test_without_text_the_sketch_is_left_out(
    learnable: Callable[..., Any],
    quick: LengthSettings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    builder = learnable(30)
    for row in [*builder.stages, *builder.questions]:
        row.update({key: None for key in ("user_text", "text") if key in row})
    fit_and_write(builder.traces(), tmp_path / "out", quick, Output(quiet=True))
    assert "hold no text" in capsys.readouterr().err
    assert "sketch.npz" not in contents(tmp_path / "out")
    predictor = LengthPredictor.load(tmp_path / "out")
    with_text, without = predictor.predict("package:small", [REQUEST, replace(REQUEST, text="")])
    assert with_text == without


def test_constant_lengths(
    builder: Any, quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    for number in range(40):
        builder.add(f"q{number}", f"text {number}", [5])
    metrics = fit_and_write(builder.traces(), tmp_path / "out", quick, output).metrics
    assert metrics["kendall_distance"]["overall"] == 0.5
    assert metrics["kendall_distance"]["ci"] == [0.5, 0.5]
    assert metrics["pinball"]["0.5"]["overall"] == 0
    predictor = LengthPredictor.load(tmp_path / "out")
    assert predictor.models == ("package:small",)
    np.testing.assert_array_equal(
        predictor.predict("package:small", [REQUEST], (0.1, 0.9)), [[5, 5]]
    )
    np.testing.assert_array_equal(
        predictor.remaining_after("package:small", [REQUEST] * 2, [4, 5]), [[1], [5]]
    )


def test_unusable_traces_write_nothing(
    builder: Any, quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    builder.add("q1", "text", [5])
    with pytest.raises(DataError, match="collect more traces"):
        fit_and_write(builder.traces(), tmp_path / "out", quick, output)
    assert not (tmp_path / "out").exists()

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import ConfigError, DataError
from chimera_train.length.fit import fit_and_write, fit_length
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import file_names
from chimera_train.output import Output
from chimera_train.predict.length import LengthPredictor, StageRequest
from chimera_train.traces.split import HOLDOUT_FOLD, fold

REQUEST = StageRequest("math", "solve", "add then double", 11, 12, 30, 0)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_writes_what_the_runtime_loads(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    traces = learnable().write(tmp_path / "traces")
    metrics = fit_length(traces, tmp_path / "out" / "length", quick, output)
    directory = tmp_path / "out" / "length"
    assert set(contents(directory)) == {
        "length.json", "metrics.json", "package-large.npz", "package-small.npz", "sketch.npz",
        "vocabulary.json",
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
    longer = [REQUEST, REQUEST.__class__("math", "solve", "add then " * 5, 11, 12, 30, 0)]
    assert predictor.predict("package:small", longer)[1, 0] > small


def test_the_same_seed_writes_the_same_bytes(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    traces = learnable(30).traces()
    for name in ("a", "b"):
        fit_and_write(traces, tmp_path / name, quick, output)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    fit_and_write(traces, tmp_path / "c", quick.model_copy(update={"seed": 1}), output)
    assert contents(tmp_path / "c") != contents(tmp_path / "a")


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
    assert changed == {"length.json", "metrics.json"}  # the figures, not the forests
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
    texts = [REQUEST, StageRequest("math", "solve", "", 11, 12, 30, 0)]
    same = predictor.predict("package:small", texts)
    assert same[0] == same[1]


def test_constant_lengths(
    builder: Any, quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    for number in range(40):
        builder.add(f"q{number}", f"text {number}", [5])
    _, metrics = fit_and_write(builder.traces(), tmp_path / "out", quick, output)
    assert metrics["kendall_distance"]["overall"] == 0.5
    assert metrics["kendall_distance"]["ci"] == [0.5, 0.5]
    assert metrics["pinball"]["0.5"]["overall"] == 0
    predictor = LengthPredictor.load(tmp_path / "out")
    assert predictor.models == ("package:small",)
    np.testing.assert_array_equal(
        predictor.predict("package:small", [REQUEST], (0.1, 0.9)), [[5, 5]]
    )
    np.testing.assert_array_equal(
        predictor.remaining_after("package:small", [REQUEST] * 2, [4, 5]), [1, 5]
    )


def test_unusable_traces_write_nothing(
    builder: Any, quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    traces = builder.write(tmp_path / "empty")
    with pytest.raises(DataError, match="no completed program"):
        fit_length(traces, tmp_path / "out", quick, output)
    builder.add("q1", "text", [5])
    with pytest.raises(DataError, match="collect more traces"):
        fit_length(builder.write(tmp_path / "few"), tmp_path / "out", quick, output)
    assert not (tmp_path / "out").exists()


def test_replaces_an_earlier_result_as_a_whole(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fit_and_write(learnable(30).traces(), out, quick, output)
    one = learnable(30, models=("package:small",)).traces()
    fit_and_write(one, out, quick.model_copy(update={"sketch_components": 0}), output)
    assert set(contents(out)) == {"length.json", "metrics.json", "package-small.npz"}


def test_what_it_did_not_write_is_kept(
    learnable: Callable[..., Any], quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    traces = learnable(30).traces()
    for out in (tmp_path / "a", tmp_path / "b"):
        out.mkdir()
    fit_and_write(traces, tmp_path / "b", quick, output)
    (tmp_path / "a" / "thesis.tex").write_text("years")
    (tmp_path / "b" / "thesis.tex").write_text("of work")
    for out in (tmp_path / "a", tmp_path / "b"):
        before = contents(out)
        with pytest.raises(ConfigError, match="'thesis.tex'"):
            fit_and_write(traces, out, quick, output)
        assert contents(out) == before
    with pytest.raises(ConfigError, match="is a file"):
        fit_and_write(traces, tmp_path / "a" / "thesis.tex", quick, output)


def test_a_failed_write_leaves_the_earlier_result(
    learnable: Callable[..., Any],
    quick: LengthSettings,
    output: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traces, out = learnable(30).traces(), tmp_path / "out"
    fit_and_write(traces, out, quick, output)
    before = contents(out)

    def full(path: Path, value: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("chimera_train.length.store.write_json", full)
    with pytest.raises(OSError, match="No space"):
        fit_and_write(traces, out, quick, output)
    assert contents(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_model_names_become_distinct_file_names() -> None:
    models = [
        "Qwen/Qwen3-8B@abc",
        "qwen/qwen3-8b@abc",
        "/models/x",
        "sketch",
        "::",
        "Qwen-Qwen3-8B-abc-2",
    ]
    names = file_names(models)
    assert names["Qwen/Qwen3-8B@abc"] == "Qwen-Qwen3-8B-abc"
    assert names["/models/x"] == "models-x"
    assert len({name.lower() for name in names.values()} | {"sketch"}) == len(models) + 1

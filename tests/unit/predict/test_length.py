import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.files import sha256, write_json
from chimera_train.predict.features import Features, StageRequest
from chimera_train.predict.forest import ForestArrays
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.text import TextSketch

SHORT = StageRequest("math", "solve", "add", 5, 10, 20, 0)
LONG = replace(SHORT, text="double", user_tokens=90, prompt_tokens=100)


def stump(feature: int, threshold: float) -> ForestArrays:
    """One tree: 10, 20, 30 tokens at or below the threshold, 100, 100, 400 above."""

    def integers(*values: int) -> Any:
        return np.array(values, dtype=np.int32)

    return ForestArrays(
        roots=integers(0),
        feature=integers(feature, -1, -1),
        threshold=np.array([threshold, -2, -2], dtype=np.float32),
        left=integers(1, -1, -1),
        right=integers(2, -1, -1),
        leaf_start=integers(0, 0, 3, 6),
        leaf_ranks=integers(0, 1, 2, 3, 3, 4),
        values=np.array([10.0, 20, 30, 100, 400]),
        value_rows=integers(1, 1, 1, 2, 1),
    )


PROMPT, MATH, SOLVE = 2, 4, 6  # columns: 4 counts, 2 workflows, 1 stage, 1 text
FEATURES = Features(
    ["math", "vote"], ["solve"], TextSketch(["double"], np.ones(1), np.array([[3.0]]))
)


@pytest.fixture
def predictor() -> LengthPredictor:
    forests = {"small": stump(PROMPT, 50.5), "large": stump(MATH, 0.5)}
    return LengthPredictor(FEATURES, forests, {"small": 5, "large": 7})


def test_rows_hold_counts_names_and_text() -> None:
    unknown = replace(LONG, workflow="other", stage="solved", generated_tokens=3)
    np.testing.assert_array_equal(
        FEATURES.rows([SHORT, LONG, unknown]),
        [[5, 10, 20, 0, 1, 0, 1, 0], [5, 90, 100, 0, 1, 0, 1, 3], [5, 90, 100, 3, 0, 0, 0, 3]],
    )


def test_without_a_sketch_there_are_no_text_columns() -> None:
    features = Features(["math", "vote"], ["solve"], None)
    assert features.n_features == 7
    np.testing.assert_array_equal(features.rows([LONG]), FEATURES.rows([LONG])[:, :7])


def test_predicts_quantiles_of_the_leaf(predictor: LengthPredictor) -> None:
    assert predictor.models == ("large", "small")
    np.testing.assert_array_equal(predictor.predict("small", [SHORT, LONG]), [[20], [100]])
    np.testing.assert_array_equal(
        predictor.predict("small", [LONG, SHORT], (0.0, 0.75, 1.0)), [[100, 250, 400], [10, 25, 30]]
    )
    assert predictor.predict("small", []).shape == (0, 1)


def test_an_unknown_workflow_goes_where_the_known_ones_are_not(predictor: LengthPredictor) -> None:
    elsewhere = replace(SHORT, workflow="never seen", stage="neither")
    np.testing.assert_array_equal(predictor.predict("large", [SHORT, elsewhere]), [[100], [20]])


def test_remaining_after_conditions_instead_of_flooring(predictor: LengthPredictor) -> None:
    generated = [0, 15, 25, 30, 99, 100, 400, 5000]
    remaining = predictor.remaining_after("small", [SHORT] * len(generated), generated)
    # Leaf 10, 20, 30; then all rows, 10, 20, 30, 100, 100, 400; then twice what was generated.
    np.testing.assert_array_equal(remaining, [20, 10, 5, 70, 1, 300, 400, 5000])


def test_remaining_after_nothing_is_the_prediction(predictor: LengthPredictor) -> None:
    requests = [SHORT, LONG]
    np.testing.assert_array_equal(
        predictor.remaining_after("small", requests, [0, 0]),
        predictor.predict("small", requests)[:, 0],
    )


def test_an_unknown_model_is_named(predictor: LengthPredictor) -> None:
    with pytest.raises(DataError, match=r"'medium'.*large, small"):
        predictor.predict("medium", [SHORT])
    with pytest.raises(DataError, match="'medium'"):
        predictor.template_overhead_tokens("medium")
    assert predictor.template_overhead_tokens("large") == 7


def test_refuses_a_forest_that_needs_more_columns() -> None:
    with pytest.raises(DataError, match="'small' needs 9 features, but there are 8"):
        LengthPredictor(FEATURES, {"small": stump(8, 0)}, {"small": 0})


@pytest.fixture
def directory(tmp_path: Path, predictor: LengthPredictor) -> Path:
    path = tmp_path / "length"
    path.mkdir()
    files = {model: f"{model}.npz" for model in predictor.models}
    for model, file in files.items():
        predictor.forests[model].save(path / file)
    assert predictor.features.sketch is not None
    names = [*files.values(), *predictor.features.sketch.save(path)]
    manifest = {
        "schema_version": 1,
        "models": {
            model: {
                "file": file,
                "template_overhead_tokens": predictor.template_overhead_tokens(model),
                "rows": 6,
            }
            for model, file in files.items()
        },
        "workflows": ["math", "vote"],
        "stages": ["solve"],
        "quantiles": [0.5],
        "has_text": True,
        "settings": {},
        "metrics": {},
        "sha256": {name: sha256(path / name) for name in names},
    }
    write_json(path / "length.json", manifest)
    return path


def test_a_loaded_predictor_predicts_the_same(predictor: LengthPredictor, directory: Path) -> None:
    loaded = LengthPredictor.load(directory)
    assert loaded.models == predictor.models
    for model in predictor.models:
        requests = [SHORT, LONG]
        np.testing.assert_array_equal(
            loaded.predict(model, requests, (0.1, 0.9)),
            predictor.predict(model, requests, (0.1, 0.9)),
        )
        assert loaded.template_overhead_tokens(model) == predictor.template_overhead_tokens(model)


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "length.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "length.json").unlink(), "length.json does not exist"),
        (lambda d: (d / "length.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "length.json").write_text("[]"), "length.json"),
        (edit(lambda m: m.update(schema_version=2)), "newer than the supported 1"),
        (edit(lambda m: m.pop("stages")), "stages: field required"),
        (edit(lambda m: m.update(extra=1)), "extra"),
        (edit(lambda m: m["models"].clear()), "models"),
        (edit(lambda m: m["models"]["small"].update(file="../small.npz")), "models.small.file"),
        (edit(lambda m: m["sha256"].update({"../x": "0"})), "lacks '../x'"),
        (edit(lambda m: m.update(has_text=False, workflows=[], stages=[])), "needs 5 features"),
        (lambda d: (d / "small.npz").unlink(), "lacks 'small.npz'"),
        (lambda d: (d / "large.npz").write_bytes(b"x"), "large.npz was altered"),
        (lambda d: (d / "vocabulary.json").write_text('["triple"]'), "vocabulary.json was altered"),
    ],
)
def test_refuses_a_damaged_directory(
    directory: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(directory)
    with pytest.raises(DataError, match=message):
        LengthPredictor.load(directory)


def test_needs_no_training_library(directory: Path) -> None:
    script = """
import sys
for name in ("sklearn", "quantile_forest", "scipy", "pandas", "torch", "transformers", "pyarrow"):
    sys.modules[name] = None  # importing it fails
from pathlib import Path
from chimera_train.predict.length import LengthPredictor, StageRequest
request = StageRequest("math", "solve", "double", 5, 90, 100, 0)
assert LengthPredictor.load(Path(sys.argv[1])).predict("small", [request]) == [[100]]
"""
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True)

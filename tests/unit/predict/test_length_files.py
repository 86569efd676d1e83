"""A length directory is loaded as it was written, or refused with a sentence that says why."""

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
from chimera_train.predict.features import FEATURES_VERSION, StageRequest
from chimera_train.predict.length import LengthPredictor
from chimera_train.predict.length_files import read_manifest

Change = Callable[[Path], object]

SHORT = StageRequest("math", "solve", "add", 5, 10, 20)
LONG = replace(SHORT, text="double", user_tokens=90, prompt_tokens=100)


@pytest.fixture
def directory(tmp_path: Path, predictor: LengthPredictor) -> Path:
    path = tmp_path / "length"
    path.mkdir()
    features = predictor.features
    assert features.sketch is not None
    for model in predictor.models:
        predictor.estimators[model].save(path / f"{model}.npz")
    features.sketch.save(path)
    predictor.cells.save(path)
    manifest = {
        "schema_version": 2,
        "target": "remaining",
        "estimator": "forest",
        "sketch": "tfidf_svd",
        "pooled": False,
        "models": {
            model: {
                "file": f"{model}.npz",
                "template_overhead_tokens": predictor.template_overhead_tokens(model),
                "rows": 6,
                "bounds": predictor.bounds[model].model_dump(),
            }
            for model in predictor.models
        },
        "workflows": list(features.workflows),
        "stages": list(features.stages),
        "features": {"version": FEATURES_VERSION, "columns": list(features.columns)},
        "quantiles": [0.1, 0.5, 0.9],
        "settings": {},
        "metrics": {},
        "sha256": {file.name: sha256(file) for file in sorted(path.iterdir())},
    }
    write_json(path / "length.json", manifest)
    return path


def test_a_loaded_predictor_predicts_the_same(predictor: LengthPredictor, directory: Path) -> None:
    loaded = LengthPredictor.load(directory)
    assert loaded.models == predictor.models
    requests = [SHORT, LONG, replace(LONG, prompt_tokens=399), replace(SHORT, workflow="other")]
    for model in (*predictor.models, "never seen"):
        ours = predictor.predict_with_source(model, requests, (0.1, 0.9))
        theirs = loaded.predict_with_source(model, requests, (0.1, 0.9))
        np.testing.assert_array_equal(theirs.tokens, ours.tokens)
        np.testing.assert_array_equal(theirs.outside, ours.outside)
        assert theirs.source == ours.source
    for model in predictor.models:
        assert loaded.template_overhead_tokens(model) == predictor.template_overhead_tokens(model)


def edit(change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(directory: Path) -> None:
        path = directory / "length.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest))

    return apply


def small(**values: Any) -> Change:
    return edit(lambda manifest: manifest["models"]["small"].update(values))


def bounds(**values: Any) -> Change:
    return edit(lambda manifest: manifest["models"]["small"]["bounds"].update(values))


def columns(change: Callable[[list[str]], object]) -> Change:
    return edit(lambda manifest: change(manifest["features"]["columns"]))


def feature_version(version: int) -> Change:
    return edit(lambda manifest: manifest["features"].update(version=version))


def rewritten(name: str, text: str) -> Change:
    """Another content, with its checksum."""

    def apply(directory: Path) -> None:
        (directory / name).write_text(text)
        digest = sha256(directory / name)
        edit(lambda manifest: manifest["sha256"].update({name: digest}))(directory)

    return apply


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "length.json").unlink(), "length.json does not exist"),
        (lambda d: (d / "length.json").write_text("{"), "not valid JSON"),
        (lambda d: (d / "length.json").write_text("[]"), "length.json"),
        (
            edit(lambda m: m.update(schema_version=1)),
            "version 1, older than the supported 2: make it again",
        ),
        (edit(lambda m: m.update(schema_version=3)), "version 3, newer than the supported 2"),
        (edit(lambda m: m.pop("stages")), "stages: field required"),
        (edit(lambda m: m.update(extra=1)), "extra"),
        (edit(lambda m: m["models"].clear()), "models"),
        (edit(lambda m: m.update(estimator="tree")), "estimator"),
        (small(file="../small.npz"), "models.small.file"),
        (small(rows=0), "models.small.rows"),
        (small(bounds=None), "'small' lacks the bounds of its training data: fit again"),
        (bounds(least=[0]), "models.small.bounds.least"),
        (bounds(most=[0, 1, 2, float("nan")]), "models.small.bounds.most"),
        (bounds(spread=-1), "models.small.bounds.spread"),
        (bounds(novelty=float("inf")), "models.small.bounds.novelty"),
        (feature_version(1), f"version 1 of the features, .* computes {FEATURES_VERSION}: fit"),
        (
            feature_version(99),
            f"version 99 of the features, .* computes {FEATURES_VERSION}: update",
        ),
        (columns(lambda c: c.append("moon")), r"other features .* \(moon\): fit again"),
        (columns(lambda c: c.remove("lines")), r"other features .* \(lines\): fit again"),
        (columns(lambda c: c.reverse()), r"other features .* \(another order\): fit again"),
        (edit(lambda m: m["stages"].pop()), r"other features .* \(stage=verify\): fit again"),
        (edit(lambda m: m.update(pooled=True)), r"other features .* \(model=large\)"),
        (edit(lambda m: m.update(sketch=None)), r"other features .* \(first_line\)"),
        (edit(lambda m: m["sha256"].update({"../x": "0"})), "lacks '../x'"),
        (lambda d: (d / "small.npz").unlink(), "lacks 'small.npz'"),
        (lambda d: (d / "cells.json").unlink(), "lacks 'cells.json'"),
        (lambda d: (d / "large.npz").write_bytes(b"x"), "large.npz was altered"),
        (lambda d: (d / "vocabulary.json").write_text('["triple"]'), "vocabulary.json was altered"),
        (rewritten("cells.json", "[]"), "lacks the cell of everything"),
        (rewritten("cells.json", "[{}]"), "cells.json is damaged"),
        (rewritten("small.npz", "x"), "small.npz is not a readable array file"),
        (rewritten("vocabulary.json", '["a", "b"]'), "2 terms but idf of shape"),
    ],
)
def test_refuses_a_damaged_directory(directory: Path, damage: Change, message: str) -> None:
    damage(directory)
    with pytest.raises(DataError, match=message) as caught:
        LengthPredictor.load(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "asked"), [("remaining", "stage"), ("stage", "remaining"), ("rank", "remaining")]
)
def test_refuses_what_predicts_something_else(directory: Path, stored: str, asked: Any) -> None:
    edit(lambda manifest: manifest.update(target=stored))(directory)
    with pytest.raises(DataError, match=f"target '{stored}'.* 'fit length --target {asked}'"):
        LengthPredictor.load(directory, asked)
    assert read_manifest(directory).target == stored


def test_models_may_share_a_file(directory: Path) -> None:
    small(file="large.npz")(directory)
    loaded = LengthPredictor.load(directory)
    assert loaded.estimators["small"] is loaded.estimators["large"]


def test_needs_no_training_library(directory: Path) -> None:
    script = """
import sys
for name in ("sklearn", "quantile_forest", "lightgbm", "scipy", "pandas", "torch", "transformers",
             "pyarrow"):
    sys.modules[name] = None  # importing it fails
from pathlib import Path
from chimera_train.predict.length import LengthPredictor, StageRequest
request = StageRequest("math", "solve", "double", 5, 90, 100)
assert LengthPredictor.load(Path(sys.argv[1])).predict("small", [request]) == [[100]]
"""
    subprocess.run([sys.executable, "-c", script, str(directory)], check=True)

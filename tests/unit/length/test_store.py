import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import ConfigError
from chimera_train.length.estimators import FittedLength, fit_estimators
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import (
    file_names,
    require_replaceable,
    write_length,
)
from chimera_train.predict.fitted import fitted_questions
from chimera_train.predict.length import LengthPredictor
from chimera_train.traces.split import fingerprints

QUESTIONS = pd.Series(["q1", "q2"])
OURS = {"sketch", "encoder", "questions"}


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def fitted(learnable: Callable[..., Any], quick: LengthSettings) -> FittedLength:
    return fit_estimators(stage_rows(learnable(10).traces()), quick)


def test_replaces_an_earlier_result_as_a_whole(
    fitted: FittedLength, learnable: Callable[..., Any], quick: LengthSettings, tmp_path: Path
) -> None:
    out = tmp_path / "length"
    write_length(out, fitted, quick, {}, QUESTIONS)
    assert "package-large.npz" in contents(out)
    settings = quick.model_copy(update={"sketch_components": 0})
    one = fit_estimators(stage_rows(learnable(10, ("package:small",)).traces()), settings)
    write_length(out, one, settings, {}, QUESTIONS[:1])
    assert set(contents(out)) == {
        "cells.json", "length.json", "metrics.json", "model_card.md", "package-small.npz",
        "questions.npz",
    }  # fmt: skip
    assert LengthPredictor.load(out).models == ("package:small",)
    assert fitted_questions(out).tolist() == fingerprints(QUESTIONS[:1]).tolist()
    assert list(tmp_path.iterdir()) == [out]


def test_a_result_of_an_older_version_is_replaced(
    fitted: FittedLength, quick: LengthSettings, tmp_path: Path
) -> None:
    (tmp_path / "package-small.npz").write_bytes(b"forest of then")
    manifest = {"schema_version": 1, "sha256": {"package-small.npz": "0"}}
    (tmp_path / "length.json").write_text(json.dumps(manifest))
    (tmp_path / "metrics.json").write_text("{}")
    write_length(tmp_path, fitted, quick, {}, QUESTIONS)
    assert LengthPredictor.load(tmp_path).models == fitted.predictor.models


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"sha256": 5}', '{"sha256": ["a.npz"]}'])
def test_a_damaged_manifest_claims_nothing(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "length.json").write_text(damaged)
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"holds 'a\.npz'"):
        require_replaceable(tmp_path)


def test_models_of_a_pool_share_one_file(
    learnable: Callable[..., Any], quick: LengthSettings, tmp_path: Path
) -> None:
    settings = quick.model_copy(update={"per_model": False})
    rows = stage_rows(learnable(30).traces())
    fitted = fit_estimators(rows, settings)
    write_length(tmp_path, fitted, settings, {}, rows["question_id"])
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == [
        "all-models.npz", "questions.npz", "sketch.npz",
    ]  # fmt: skip
    loaded = LengthPredictor.load(tmp_path)
    assert loaded.estimators["package:small"] is loaded.estimators["package:large"]
    requests = stage_requests(rows[:50])
    for model in loaded.models:
        np.testing.assert_array_equal(
            loaded.predict(model, requests, (0.1, 0.5, 0.9)),
            fitted.predictor.predict(model, requests, (0.1, 0.5, 0.9)),
        )


def test_what_it_did_not_write_is_kept(
    fitted: FittedLength, quick: LengthSettings, tmp_path: Path
) -> None:
    out = tmp_path / "length"
    require_replaceable(out)
    out.mkdir()
    require_replaceable(out)
    write_length(out, fitted, quick, {}, QUESTIONS)
    require_replaceable(out)
    (out / "thesis.tex").write_text("years of work")
    before = contents(out)
    with pytest.raises(ConfigError, match=r"'thesis\.tex'"):
        write_length(out, fitted, quick, {}, QUESTIONS)
    assert contents(out) == before
    (out / "length.json").unlink()  # without it nothing says that the rest is ours
    with pytest.raises(ConfigError, match=r"'cells\.json', which"):
        require_replaceable(out)
    with pytest.raises(ConfigError, match="is a file"):
        require_replaceable(out / "thesis.tex")


@pytest.mark.parametrize("earlier", [True, False])
def test_a_failed_write_changes_nothing(
    fitted: FittedLength,
    quick: LengthSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: bool,
) -> None:
    out = tmp_path / "new" / "length"
    if earlier:
        write_length(out, fitted, quick, {}, QUESTIONS)
    before = contents(out) if earlier else None

    def full(path: Path, value: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("chimera_train.length.store.write_json", full)
    with pytest.raises(OSError, match="No space"):
        write_length(out, fitted, quick, {}, QUESTIONS)
    assert (contents(out) if out.exists() else None) == before
    assert list(out.parent.iterdir()) == ([out] if earlier else [])


def test_model_names_become_distinct_file_names() -> None:
    models = [
        "Qwen/Qwen3-8B@abc",
        "qwen/qwen3-8b@abc",
        "/models/x",
        "sketch",
        "encoder",
        "questions",
        "::",
        "Qwen-Qwen3-8B-abc-2",
    ]
    names = file_names(models)
    assert names["Qwen/Qwen3-8B@abc"] == "Qwen-Qwen3-8B-abc"
    assert names["/models/x"] == "models-x"
    assert len({name.lower() for name in names.values()} | OURS) == len(models) + len(OURS)

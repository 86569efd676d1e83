"""Fitting on traces that hold keyed hashes of their texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import fit
from chimera_train.collect.privacy import Privacy
from chimera_train.errors import ConfigError, DataError
from chimera_train.hashed_text import HashedText, HashKey
from chimera_train.length.estimators import fit_estimators
from chimera_train.length.fit import fit_and_write
from chimera_train.length.rows import stage_requests, stage_rows, with_hashed_texts
from chimera_train.length.settings import LengthSettings
from chimera_train.length.store import write_length
from chimera_train.output import Output
from chimera_train.predict.features import StageRequest
from chimera_train.predict.length import LengthPredictor
from chimera_train.traces.store import Traces, load_traces, write_table

KEY = HashKey(bytes(range(32)))
OTHER = HashKey(bytes(32))


@pytest.fixture
def without_texts(learnable: Callable[..., Any], tmp_path: Path) -> Path:
    """A data set as --no-text leaves it."""
    builder, privacy = learnable(40), Privacy(key=KEY)
    directory = tmp_path / "traces"
    write_table(directory, "programs", builder.programs)
    write_table(directory, "stages", map(privacy.stage, builder.stages))
    write_table(directory, "questions", map(privacy.question, builder.questions))
    return directory


def test_a_predictor_of_hashes_reads_plain_texts(
    without_texts: Path, learnable: Callable[..., Any], quick: LengthSettings, tmp_path: Path
) -> None:
    rows, plain = stage_rows(load_traces(without_texts)), stage_rows(learnable(40).traces())
    fitted = fit_estimators(with_hashed_texts(rows, KEY), quick, key=KEY)
    directory = tmp_path / "length"
    write_length(directory, fitted, quick, {}, rows["question_id"])
    manifest = json.loads((directory / "length.json").read_text())
    assert manifest["sketch"] == "hashed"
    assert "hash-key.txt" in manifest["sha256"]
    assert "keyed hashes" in (directory / "model_card.md").read_text()
    small = stage_requests(plain[plain["model"] == "package:small"])
    predictor = LengthPredictor.load(directory)
    of_texts = predictor.predict("package:small", small)
    of_hashes = predictor.predict(
        "package:small", stage_requests(rows[rows["model"] == "package:small"])
    )
    np.testing.assert_array_equal(of_texts, of_hashes)
    # As good as with texts, but for the order of the terms, which decides the draws of columns.
    by_text = fit_estimators(plain, quick).predictor
    assert isinstance(by_text, LengthPredictor)
    expected = by_text.predict("package:small", small)
    assert np.corrcoef(of_texts[:, 0], expected[:, 0])[0, 1] > 0.95


def test_the_key_is_needed_and_must_be_the_right_one(
    without_texts: Path, quick: LengthSettings, output: Output, tmp_path: Path
) -> None:
    traces, out = load_traces(without_texts), tmp_path / "length"
    with pytest.raises(ConfigError, match="give the key with --hash-key-file"):
        fit_and_write(traces, out, quick, output)
    with pytest.raises(DataError, match=r"hashed with the key '.*', not with"):
        fit_and_write(traces, out, quick, output, key=OTHER)
    encoder = quick.model_copy(update={"sketch": "encoder", "encoder": "x"})
    with pytest.raises(ConfigError, match="An encoder reads texts"):
        fit_and_write(traces, out, encoder, output, key=KEY)
    assert not out.exists()


def test_a_predictor_of_texts_refuses_hashes(
    learnable: Callable[..., Any], quick: LengthSettings
) -> None:
    fitted = fit_estimators(stage_rows(learnable(30).traces()), quick)
    predictor = fitted.predictor
    request = StageRequest("math", "solve", HashedText(KEY.name, (1,), (), (), 1), 11, 12, 30)
    with pytest.raises(DataError, match="the predictor was fitted on plain ones"):
        predictor.predict("package:small", [request])


def test_stored_texts_are_hashed_beside_those_that_were_not(
    without_texts: Path, learnable: Callable[..., Any]
) -> None:
    hashed, plain = load_traces(without_texts), learnable(40).traces()
    keys = ["program_id", "stage_index"]
    texts = plain.stages.set_index(keys)["user_text"].loc[hashed.stages.set_index(keys).index]
    texts = texts.set_axis(hashed.stages.index)
    stages = hashed.stages.assign(user_text=texts.where(texts.index % 2 == 0))
    rows = stage_rows(Traces(hashed.programs, stages, hashed.questions))
    assert {type(text) for text in rows["text"]} == {str, HashedText}
    expected = with_hashed_texts(stage_rows(plain), KEY)["text"]
    assert with_hashed_texts(rows, KEY)["text"].tolist() == expected.tolist()


def test_features_of_another_version_are_refused(without_texts: Path) -> None:
    rows = stage_rows(load_traces(without_texts))
    text = rows["text"][0]
    old = HashedText(text.key, text.words, text.pairs, text.numbers[1:], text.version)
    with pytest.raises(DataError, match="hashed by another version of chimera-train"):
        with_hashed_texts(rows.assign(text=[old] * len(rows)), KEY)


def test_the_command_finds_the_key_beside_the_traces(without_texts: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    fit.register(app)
    (tmp_path / "params.yaml").write_text(
        "fit_length: {n_estimators: 4, sketch_components: 4, n_jobs: 1}"
    )
    command = ["fit", "length", "--traces", str(without_texts), "--out", str(tmp_path / "length")]
    command += ["--params", str(tmp_path / "params.yaml"), "--quiet"]
    refused = CliRunner().invoke(app, command)
    assert "give the key with --hash-key-file" in str(refused.exception)
    (tmp_path / "traces.hash-key").write_text(KEY.secret.hex())
    assert CliRunner().invoke(app, command).exit_code == 0

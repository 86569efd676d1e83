"""ListMLE against all orders of a list, and the predictors of single stages and of ranks."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from chimera_train.cli import fit as cli
from chimera_train.errors import DataError
from chimera_train.history import History
from chimera_train.length.fit import fit_and_write
from chimera_train.length.rank import fit_scorer, list_mle
from chimera_train.length.rows import stage_rows
from chimera_train.predict.length import LengthPredictor, StageRequest
from chimera_train.predict.ranker import Ranker

REQUEST = StageRequest("math", "solve", "add then double", 11, 12, 30)
LONGER = StageRequest("math", "solve", "add then double then halve then add then add", 11, 12, 30)


def test_the_loss_is_that_of_the_probability_of_the_order():
    scores = [0.3, -1.0, 2.0, 0.0]
    probabilities = [
        math.exp(-4 * float(list_mle(torch.tensor([[scores[i] for i in order]]))))
        for order in itertools.permutations(range(4))
    ]
    assert sum(probabilities) == pytest.approx(1.0, rel=1e-5)
    first = math.exp(2.0) / sum(math.exp(score) for score in scores)
    chances = [
        p for p, order in zip(probabilities, itertools.permutations(range(4)), strict=True)
        if order[0] == 2
    ]  # fmt: skip
    assert sum(chances) == pytest.approx(first, rel=1e-5)


def test_a_scorer_learns_an_order_and_keeps_it(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    X[:, 2] = 7.0  # tells nothing
    lengths = np.rint(np.exp(X[:, 0]) * 50 + 1)
    scorer = fit_scorer(X, lengths, seed=0)
    pairs = rng.integers(0, 400, size=(2000, 2))
    right = (scorer(X)[pairs[:, 0]] < scorer(X)[pairs[:, 1]]) == (
        lengths[pairs[:, 0]] < lengths[pairs[:, 1]]
    )
    assert right[lengths[pairs[:, 0]] != lengths[pairs[:, 1]]].mean() > 0.95
    scorer.save(tmp_path / "m.npz")
    np.testing.assert_array_equal(type(scorer).load(tmp_path / "m.npz")(X), scorer(X))
    np.testing.assert_array_equal(fit_scorer(X, lengths, seed=0)(X), scorer(X))


def test_stages_are_predicted_by_themselves(learnable, quick, output, tmp_path):
    traces = learnable().traces()
    rows = stage_rows(traces, "stage")
    assert rows["target_tokens"].tolist() == rows["output_tokens"].tolist()
    metrics = fit_and_write(traces, tmp_path / "stage", quick, output, "stage").metrics
    assert metrics["kendall_distance"]["overall"] < metrics["baselines"]["fcfs"]
    predictor = LengthPredictor.load(tmp_path / "stage", target="stage")
    history = History().after("solve", 30, 20)
    verify = StageRequest("math", "verify", "add then double", 11, 22, 40, history)
    assert predictor.predict("package:small", [verify])[0, 0] == 3  # whatever is behind it


def test_ranks_are_written_and_read(learnable, quick, output, tmp_path):
    metrics = fit_and_write(learnable().traces(), tmp_path / "rank", quick, output, "rank").metrics
    assert metrics["kendall_distance"]["overall"] < 0.15 < metrics["baselines"]["fcfs"]
    assert "coverage" not in metrics
    assert json.loads((tmp_path / "rank" / "length.json").read_text())["quantiles"] == []
    ranker = Ranker.load(tmp_path / "rank")
    assert ranker.models == ("package:large", "package:small")
    shorter, longer = ranker.predict("package:small", [REQUEST, LONGER])
    assert shorter < longer
    with pytest.raises(DataError, match="No scorer for model 'x': there are package:large"):
        ranker.predict("x", [REQUEST])
    (tmp_path / "rank" / "package-small.npz").write_bytes(b"")
    with pytest.raises(DataError, match="was altered"):
        Ranker.load(tmp_path / "rank")


def test_one_target_is_not_taken_for_another(learnable, quick, output, tmp_path):
    traces = learnable(30).traces()
    for target in ("remaining", "stage", "rank"):
        fit_and_write(traces, tmp_path / target, quick, output, target)
    with pytest.raises(
        DataError,
        match=r"stage predicts the tokens of single stages \(target 'stage'\), but the tokens that"
        r" a program still generates \(target 'remaining'\) are needed here",
    ):
        LengthPredictor.load(tmp_path / "stage")
    with pytest.raises(DataError, match="'fit length --target stage'"):
        LengthPredictor.load(tmp_path / "remaining", target="stage")
    with pytest.raises(DataError, match=r"remaining predicts .* an order of single stages"):
        Ranker.load(tmp_path / "remaining")


def test_people_see_the_ranker_beside_the_baselines(learnable, tmp_path):
    app = typer.Typer()
    cli.register(app)
    (tmp_path / "params.yaml").write_text("fit_length: {n_estimators: 8, sketch_components: 4}\n")
    arguments = ["--traces", learnable(30).write(tmp_path / "traces"), "--out", tmp_path / "out"]
    result = CliRunner().invoke(
        app,
        ["fit", "length", "--target", "rank", "--params", str(tmp_path / "params.yaml")]
        + [str(argument) for argument in arguments],
        catch_exceptions=False,
    )
    header = "of predicted 95 % interval fcfs prompt_length stage_mean stage_median"
    assert header.split() in [line.split() for line in result.stdout.splitlines()]
    assert "quantile" not in result.stdout

"""How many questions are enough, on questions whose words decide."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from chimera_train.output import Output
from chimera_train.router import learning
from chimera_train.router.fit import fit_router
from chimera_train.router.labels import RouterData, Split, router_data, split
from chimera_train.router.learning import learning_curve
from chimera_train.router.settings import BoostedSettings, RouterSettings
from chimera_train.traces.store import load_traces

SETTINGS = RouterSettings(kind="tfidf_logreg", boosted=BoostedSettings(max_rounds=5))


@pytest.fixture
def parts(traces: Path) -> Split:
    return split(router_data(load_traces(traces)))


def test_sets_double_and_the_last_is_everything(
    parts: Split, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_LEAST_QUESTIONS", 15)
    curve = learning_curve(parts, "tfidf_logreg", SETTINGS, output)
    questions = [point["questions"] for point in curve["points"]]
    everything = len(parts.training.texts) + len(parts.validation.texts)
    assert questions[-1] == everything
    assert len(questions) == 3
    np.testing.assert_allclose(np.divide(questions[1:], questions[:-1]), 2, atol=0.1)
    for point in curve["points"]:
        assert 0 < point["map_macro"] <= 1
    assert curve["kind"] == "tfidf_logreg"


def test_an_encoder_has_a_stand_in_and_few_questions_one_point(
    parts: Split, output: Output
) -> None:
    curve = learning_curve(parts, "encoder", SETTINGS, output)
    assert curve["kind"] == "blend"
    assert len(curve["points"]) == 1
    assert curve["enough_questions"] is None


def test_no_set_without_a_question_of_every_model(
    parts: Split, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_LEAST_QUESTIONS", 15)
    rare = np.arange(len(parts.training.texts)) > 0
    success = parts.training.success.copy()
    success[rare, 1] = np.nan
    training = RouterData(
        parts.training.models,
        parts.training.question_ids,
        parts.training.texts,
        success,
        parts.training.latency_ms,
    )
    rarely = dataclasses.replace(parts, training=training)
    assert len(learning_curve(rarely, "knn", SETTINGS, output)["points"]) == 1


def test_a_fit_with_a_curve_has_it_in_its_metrics_and_a_card(
    traces: Path, tmp_path: Path, output: Output
) -> None:
    metrics = fit_router(traces, tmp_path / "router", SETTINGS, output, learning=True)
    assert metrics["learning_curve"]["points"]
    card = (tmp_path / "router" / "model_card.md").read_text()
    assert card.startswith("# Router of kind tfidf_logreg\n")
    assert f"| this router | {metrics['map_macro']:.4g} |" in card
    for model in ("package:pocket-llama", "package:pocket-qwen"):
        assert f"| {model} | {metrics['ap'][model]:.4g} |" in card

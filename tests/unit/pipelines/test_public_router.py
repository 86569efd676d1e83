"""The router of words against the baseline that it is, and its refusals."""

import numpy as np
import pytest
import words
from chimera_train.router.baselines import baseline_scores

from chimera_train.predict.router import OnnxRouter
from chimera_train.router.labels import router_data, split
from chimera_train.traces.store import load_traces, write_table

WORDS = ["add", "7", "Übung", "x_1", "two-fold", "café", "BIG", "…", "“so”"]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    rng = np.random.default_rng(0)
    tables = {"programs": [], "stages": [], "questions": []}
    for i in range(200):
        text = " ".join(rng.choice(WORDS, rng.integers(1, 12)))
        tables["questions"].append({"question_id": f"q{i}", "task": "t", "text": text})
        for model, word in (("a", "add"), ("b", "big")):
            name = f"q{i}/{model}"
            tables["programs"].append(
                {
                    "program_id": name, "task": "t", "question_id": f"q{i}", "workflow": "w",
                    "model": model, "sample": 0, "n_stages": 1, "total_output_tokens": 1,
                    "score": float(rng.random() < (0.8 if word in text.lower() else 0.3)),
                }
            )  # fmt: skip
            tables["stages"].append(
                {"program_id": name, "stage_index": 0, "stage": "s", "prompt_tokens": 1,
                 "output_tokens": 1, "attempt": 1}
            )  # fmt: skip
    directory = tmp_path_factory.mktemp("traces")
    for name, rows in tables.items():
        write_table(directory, name, rows)
    return directory


def test_the_network_is_the_baseline(traces, tmp_path):
    metrics = words.fit_words(traces, tmp_path / "router")
    router = OnnxRouter.load(tmp_path / "router")
    parts = split(router_data(load_traces(traces)))
    texts = [*parts.holdout.texts, "", "nobody knows these", "ADD add Add 7"]
    expected = baseline_scores(parts.training, texts)["tfidf_logreg"]
    logits = router.logits(texts)
    assert 1 / (1 + np.exp(-logits)) == pytest.approx(expected, abs=1e-5)
    assert router.models == ("a", "b")
    assert router.predict(texts).shape == expected.shape
    assert metrics["map_macro"] == pytest.approx(metrics["baselines"]["tfidf_logreg"])


def test_a_padded_text_is_what_it_is_alone(traces, tmp_path):
    words.fit_words(traces, tmp_path / "router")
    router = OnnxRouter.load(tmp_path / "router")
    together = router.logits(["add 7", "add 7 big café x_1 add"])
    assert together[:1] == pytest.approx(router.logits(["add 7"]), abs=1e-6)

"""Every kind of router on questions whose words decide, and through its files and back."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from chimera_train.errors import DataError
from chimera_train.predict.router import KINDS, files_of, load_router, read_manifest
from chimera_train.predict.router_scorers import BlendScorer, PriorScorer, Scorer, log_odds
from chimera_train.router.kinds import calibrated, fit_kinds, term_space
from chimera_train.router.labels import RouterData, Split
from chimera_train.router.outcomes import outcomes, prior_rates, single_outcome
from chimera_train.router.settings import BoostedSettings, RouterSettings
from chimera_train.router.store import write_router

WITHOUT_ENCODER = KINDS[:-1]
MODELS = ("depends", "always", "rarely asked")
SETTINGS = RouterSettings(
    keep_texts=False,
    neighbours=5,
    sketch_components=12,
    boosted=BoostedSettings(max_rounds=40, max_leaves=3, learning_rate=0.2, min_samples_leaf=5),
)


def data(n: int = 60) -> RouterData:
    """Easy and hard questions; the second model solves all, the third is graded on a few."""
    texts = [f"{word} question about {i % 7} apples" for i in range(n) for word in ("easy", "hard")]
    easy = np.array(["easy" in text for text in texts], dtype=np.float64)
    seldom = np.where(np.arange(len(texts)) % 10 < 4, 1 - easy, np.nan)
    return RouterData(
        models=MODELS,
        question_ids=np.array([f"q{i}" for i in range(len(texts))], dtype=object),
        texts=texts,
        success=np.column_stack([easy, np.ones(len(texts)), seldom]),
        latency_ms=np.array([10.0, 20.0, np.nan]),
    )


def fit(kind: str, training: RouterData) -> Scorer:
    return fit_kinds(training, term_space(training, SETTINGS), SETTINGS)[kind]


@pytest.mark.parametrize("kind", WITHOUT_ENCODER[1:])
def test_words_decide_where_they_were_graded(kind: str) -> None:
    texts = [f"{word} question about 3 apples" for word in ("easy", "hard")]
    q = calibrated(fit(kind, data()), data()).predict(texts)
    assert q[0, 0] > 0.8 > 0.2 > q[1, 0]
    assert q[1, 2] > 0.6 > 0.4 > q[0, 2]


@pytest.mark.parametrize("kind", WITHOUT_ENCODER)
def test_a_model_with_one_outcome_gets_its_prior(kind: str) -> None:
    logits = fit(kind, data()).logits(["easy question", "hard question about 3 apples", ""])
    assert np.isfinite(logits).all()
    prior = log_odds((120 + 0.5) / (120 + 1))
    if kind == "knn":  # whose prior is one question more
        assert (logits[:2, 1] >= prior).all()
    else:
        np.testing.assert_allclose(logits[:, 1], prior, rtol=1e-5)


@pytest.mark.parametrize("kind", WITHOUT_ENCODER)
def test_what_is_written_is_what_was_fitted(kind: str, tmp_path: Path) -> None:
    training = data()
    space = term_space(training, SETTINGS)
    router = calibrated(fit_kinds(training, space, SETTINGS)[kind], training)
    parts = Split(training, training, training)
    write_router(tmp_path, kind, router, parts, space, {}, SETTINGS)
    assert "apples" not in (tmp_path / "neighbours.json").read_text()
    loaded = load_router(tmp_path)
    texts = ["easy question", "", "neither", "hard \ud800 question " * 50]
    np.testing.assert_allclose(loaded.logits(texts), router.scorer.logits(texts), rtol=1e-6)
    np.testing.assert_allclose(loaded.predict(texts), router.predict(texts), rtol=1e-6)
    assert loaded.models == MODELS
    assert loaded.logits([]).shape == (0, 3)
    for name in files_of(read_manifest(tmp_path)):
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(DataError, match=f"{name} is not the file that"):
            load_router(tmp_path)
        (tmp_path / name).write_bytes(content)


@pytest.mark.parametrize("kind", WITHOUT_ENCODER)
def test_a_megabyte_gets_finite_logits(kind: str) -> None:
    training = data()
    assert np.isfinite(fit(kind, training).logits(["easy 12 apples! " * 2**16])).all()


def test_every_kind_has_a_fit_but_the_encoder() -> None:
    training = data()
    assert tuple(fit_kinds(training, term_space(training, SETTINGS), SETTINGS)) == WITHOUT_ENCODER


def test_a_blend_is_the_mean_of_words_and_trees() -> None:
    training = data()
    fitted = fit_kinds(training, term_space(training, SETTINGS), SETTINGS)
    texts = ["easy question", ""]
    parts = [fitted[kind].logits(texts) for kind in ("tfidf_logreg", "boosted")]
    np.testing.assert_allclose(fitted["blend"].logits(texts), np.mean(parts, axis=0))
    with pytest.raises(DataError, match="different numbers of models"):
        BlendScorer([fitted["prior"], PriorScorer(np.zeros(2))])


def test_texts_that_share_no_words_are_refused() -> None:
    training = data(2)
    training = RouterData(
        training.models, training.question_ids[:2], ["?!", "..."], training.success[:2],
        training.latency_ms,
    )  # fmt: skip
    with pytest.raises(DataError, match="No two of the 2 training questions share words"):
        term_space(training, SETTINGS)


def test_success_rates_are_weighed_outcomes() -> None:
    training = RouterData(
        models=("a", "b"),
        question_ids=np.array(["x", "y", "z"], dtype=object),
        texts=["x", "y", "z"],
        success=np.array([[0.25, 1.0], [1.0, np.nan], [0.0, 1.0]]),
        latency_ms=np.ones(2),
        weights=np.array([[4.0, 1.0], [2.0, 0.0], [1.0, 3.0]]),
    )
    rows = outcomes(training, 0)
    assert rows.rows.tolist() == [0, 1, 0, 2]
    assert rows.solved.tolist() == [True, True, False, False]
    assert rows.weights.tolist() == [1, 2, 3, 1]
    assert single_outcome(training) == [False, True]
    np.testing.assert_allclose(prior_rates(training), [3.5 / 8, 4.5 / 5])


def test_texts_of_the_calibration_are_scored_once() -> None:
    scored: list[str] = []

    class Counting(PriorScorer):
        def logits(self, texts: Sequence[str]) -> np.ndarray:
            scored.extend(texts)
            return super().logits(texts)

    validation = data()
    router = calibrated(Counting(np.zeros(len(MODELS))), validation)
    router.predict([*validation.texts, "another"])
    assert sorted(scored) == sorted([*set(validation.texts), "another"])

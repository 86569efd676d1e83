"""Judging a router on traces, with a stand-in for the network: what it says is what it is given."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.output import Output
from chimera_train.predict.calibration import sigmoid
from chimera_train.predict.fitted import save_fitted
from chimera_train.router import evaluate as module
from chimera_train.router.evaluate import evaluate_router
from chimera_train.router.labels import router_data, split
from chimera_train.router.metrics import macro_map
from chimera_train.traces.split import fingerprints
from chimera_train.traces.store import Traces, load_traces


class StandIn:
    """Is the less confident the longer the text is, and twice as sure as it says."""

    reads = "user"

    def __init__(self, models: Sequence[str]) -> None:
        self.models = tuple(models)

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        lengths = np.array([len(text) for text in texts])
        return np.tile((2 - lengths / 100)[:, None], (1, len(self.models)))

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        return sigmoid(self.logits(texts) / 2)


@pytest.fixture
def of_models(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(models: Sequence[str]) -> None:
        monkeypatch.setattr(module, "load_router", lambda _directory: StandIn(models))
        manifest = SimpleNamespace(kind="knn")
        monkeypatch.setattr(module, "read_manifest", lambda _directory: manifest)

    return load


@pytest.fixture(scope="module")
def loaded(traces: Path) -> Traces:
    return load_traces(traces)


def _fitted_on(directory: Path, question_ids: np.ndarray) -> Path:
    save_fitted(directory, fingerprints(pd.Series(question_ids)))
    return directory


def test_judges_the_questions_that_were_held_out(
    of_models: Any, loaded: Traces, tmp_path: Path, output: Output
) -> None:
    data = router_data(loaded)
    parts = split(data)
    of_models(data.models)
    fitted = [*parts.training.question_ids, *parts.validation.question_ids]
    figures = evaluate_router(_fitted_on(tmp_path, fitted), loaded, output)
    router = StandIn(data.models)
    assert figures["n_questions"] == len(parts.holdout.texts)
    assert figures["map_macro"] == pytest.approx(
        macro_map(parts.holdout.success, router.predict(parts.holdout.texts))
    )
    assert set(figures["baselines"]) == {"prior", "tfidf_logreg", "boosted", "blend"}
    assert figures["ece"]["raw"] != figures["ece"]["calibrated"]
    assert figures["stability"]["white_space"]["confidence_change"] > 0
    assert 0 <= figures["noise_ceiling"]["map_macro"] <= 1


def test_traces_with_hardly_a_known_question_are_judged_beside_their_prior(
    of_models: Any, loaded: Traces, tmp_path: Path, output: Output
) -> None:
    data = router_data(loaded)
    of_models(data.models)
    fitted = np.array(["elsewhere", *data.question_ids[:3]])
    figures = evaluate_router(_fitted_on(tmp_path, fitted), loaded, output)
    assert figures["n_questions"] == len(data.texts) - 3
    assert list(figures["baselines"]) == ["prior"]
    assert figures["routing"]["baselines"]["prior"] == pytest.approx(0, abs=0.02)


def test_models_that_the_router_does_not_know_are_left_out(
    of_models: Any,
    loaded: Traces,
    tmp_path: Path,
    output: Output,
    capsys: pytest.CaptureFixture[str],
) -> None:
    llama, qwen = router_data(loaded).models
    of_models(["another", qwen])
    figures = evaluate_router(_fitted_on(tmp_path, np.array(["elsewhere"])), loaded, output)
    assert list(figures["base_rate"]) == [qwen]
    assert f"not fitted on '{llama}'" in capsys.readouterr().err
    assert figures["routing_gain"] is None

    of_models(["another"])
    with pytest.raises(DataError, match="knows another, and the traces hold package:pocket-llama"):
        evaluate_router(tmp_path, loaded, output)


def test_refuses_traces_that_it_was_fitted_on(
    of_models: Any, loaded: Traces, tmp_path: Path, output: Output
) -> None:
    data = router_data(loaded)
    of_models(data.models)
    with pytest.raises(DataError, match="fitted on every question"):
        evaluate_router(_fitted_on(tmp_path, data.question_ids), loaded, output)
    (tmp_path / "questions.npz").unlink()
    with pytest.raises(DataError, match="does not exist"):
        evaluate_router(tmp_path, loaded, output)

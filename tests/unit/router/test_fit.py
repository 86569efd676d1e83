"""From traces to a directory that runs, on simulated arithmetic traces and a tiny network."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from chimera_train.errors import ConfigError, DataError
from chimera_train.output import Output
from chimera_train.predict.router import load_router, read_manifest
from chimera_train.router.fit import fit_router
from chimera_train.router.labels import router_data, split
from chimera_train.router.metrics import average_precision, macro_map
from chimera_train.router.settings import RouterSettings
from chimera_train.traces.store import load_traces, read_table, write_table

FILES = {
    "checkpoint",
    "metrics.json",
    "model_card.md",
    "model.int8.onnx",
    "model.onnx",
    "neighbours.json",
    "neighbours.npz",
    "questions.npz",
    "router.json",
    "sketch.npz",
    "tokenizer.json",
    "vocabulary.json",
}


@pytest.fixture(scope="module")
def fitted(
    traces: Path, settings: RouterSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("fit") / "router"
    return out, fit_router(traces, out, settings, Output(as_json=True, quiet=True))


def test_writes_the_whole_router_and_leaves_nothing_else(
    fitted: tuple[Path, dict[str, Any]],
) -> None:
    out, metrics = fitted
    assert {path.name for path in out.iterdir()} == FILES
    assert [path.name for path in out.parent.iterdir()] == ["router"]
    suffixes = {path.suffix for path in out.rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".md", ".npz", ".onnx", ".safetensors"}  # nothing that unpickles
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert json.loads((out / "router.json").read_text())["metrics"] == metrics


def test_runs_as_the_trained_network_does(
    fitted: tuple[Path, dict[str, Any]], settings: RouterSettings
) -> None:
    out, _ = fitted
    router = load_router(out)
    model = AutoModelForSequenceClassification.from_pretrained(out / "checkpoint").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "checkpoint")
    texts = ["Tom has 3 apples. He buys 4 more.", "", "Zoë ☃ " * 100, "99"]
    batch = tokenizer(
        texts, truncation=True, max_length=settings.max_length, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**batch).logits.double().numpy()
    labels = json.loads((out / "router.json").read_text())["labels"]
    scale = np.array([label["scale"] for label in labels])
    bias = np.array([label["bias"] for label in labels])
    expected = 1 / (1 + np.exp(-(scale * logits + bias)))
    np.testing.assert_allclose(router.predict(texts), expected, atol=1e-4)
    assert router.models == tuple(model.config.id2label.values())


def test_metrics_are_those_of_the_exported_router_on_the_holdout(
    fitted: tuple[Path, dict[str, Any]], traces: Path
) -> None:
    out, metrics = fitted
    holdout = split(router_data(load_traces(traces))).holdout
    q = load_router(out).predict(holdout.texts)
    assert metrics["map_macro"] == pytest.approx(macro_map(holdout.success, q))
    assert metrics["ap"] == pytest.approx(
        dict(zip(holdout.models, average_precision(holdout.success, q), strict=True))
    )
    assert metrics["base_rate"] == pytest.approx(
        dict(zip(holdout.models, (holdout.success >= 0.5).mean(axis=0), strict=True))
    )
    # A constant score has the base rate as its average precision.
    assert metrics["baselines"]["prior"] == pytest.approx(
        np.mean(list(metrics["base_rate"].values()))
    )
    assert set(metrics["baselines"]) == {"prior", "tfidf_logreg", "knn", "boosted", "blend"}
    assert set(metrics["candidates"]) == {*metrics["baselines"], "encoder"}
    assert metrics["kind"] == "encoder"
    assert set(metrics["ece"]) == {"raw", "calibrated", "per_model"}
    low, high = metrics["ci"]
    assert low <= metrics["map_macro"] <= high
    assert metrics["single_class"] == []
    assert metrics["n_questions"]["holdout"] == len(holdout.texts)


def test_refits_from_its_own_checkpoint_in_place_of_the_old_router(
    fitted: tuple[Path, dict[str, Any]],
    traces: Path,
    settings: RouterSettings,
    output: Output,
    capfd: pytest.CaptureFixture[str],
) -> None:
    out, first = fitted
    again = settings.model_copy(
        update={
            "encoder": str(out / "checkpoint"),
            "small": None,
            "epochs": 1,
            "precision": "int8",
        }
    )
    capfd.readouterr()
    metrics = fit_router(traces, out, again, output)
    assert {path.name for path in out.iterdir()} == FILES
    assert metrics["epochs"] == {"trained": 1, "best": 1}
    assert metrics["map_macro"] == metrics["int8"]["map_macro"]
    warned = "go to another model than in full precision" in capfd.readouterr().err
    assert warned == (metrics["int8"]["agreement"] < 0.99)
    assert metrics["baselines"] == first["baselines"]


def test_bad_input_writes_nothing(
    traces: Path, tmp_path: Path, settings: RouterSettings, output: Output
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    a_file = tmp_path / "file"
    a_file.write_text("x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"holds 'thesis\.tex'"):
        fit_router(traces, foreign, settings, output)
    with pytest.raises(ConfigError, match="is a file"):
        fit_router(traces, a_file, settings, output)
    with pytest.raises(DataError, match="does not exist"):
        fit_router(tmp_path / "absent", tmp_path / "out", settings, output)
    no_encoder = RouterSettings(encoder=str(tmp_path / "no-encoder"))
    with pytest.raises(ConfigError, match="no-encoder' is neither"):
        fit_router(traces, tmp_path / "out", no_encoder, output)
    assert sorted(tmp_path.rglob("*")) == before


def test_too_few_questions_write_nothing(few_traces: Path, tmp_path: Path, output: Output) -> None:
    with pytest.raises(DataError, match=r"19 graded question\(s\), and a router needs at least 20"):
        fit_router(few_traces, tmp_path / "router", RouterSettings(), output)
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_ungraded_programs_are_left_out_and_counted(
    few_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = read_table(few_traces, "programs").to_dict("records")
    for row in rows[:3]:
        row |= {"score": None, "correct": None}
    write_table(few_traces, "programs", [{k: v for k, v in r.items() if v == v} for r in rows])
    with pytest.raises(DataError, match="a router needs at least 20"):
        fit_router(few_traces, tmp_path / "router", RouterSettings(), Output())
    said = " ".join(capsys.readouterr().err.split())
    assert f"3 of {len(rows)} programs were not graded and are left out" in said


def test_by_default_no_encoder_is_trained_and_the_best_kind_is_kept(
    traces: Path, tmp_path: Path, output: Output
) -> None:
    metrics = fit_router(traces, tmp_path / "router", RouterSettings(), output)
    candidates = metrics["candidates"]
    assert set(candidates) == {"prior", "tfidf_logreg", "knn", "boosted", "blend"}
    assert metrics["kind"] in candidates
    assert read_manifest(tmp_path / "router").kind == metrics["kind"]
    assert [path.name for path in tmp_path.iterdir()] == ["router"]

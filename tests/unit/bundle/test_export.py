"""An exported bundle is complete, is loaded as it was fitted, and holds nothing else."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from chimera_train.bundle.export import Parts, export_bundle, find_latency_files
from chimera_train.bundle.load import load_bundle
from chimera_train.bundle.manifest import find_problems, read_manifest
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import sha256
from chimera_train.predict.features import StageRequest
from chimera_train.predict.router_scorers import TermScorer
from chimera_train.predict.text import TextSketch
from chimera_train.scheduling.model import EngineProfile
from chimera_train.scheduling.policy import Chimera

REQUEST = StageRequest("math", "solve", "a", 1, 1, 2)


def names(directory: Path) -> set[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix() for path in files}


def test_what_was_fitted_is_what_is_loaded(parts: Parts, tmp_path: Path) -> None:
    bundle = load_bundle(export_bundle(parts, "demo", None, tmp_path / "out"))
    q = bundle.router.predict(["a b", "c"])
    expected = 1 / (1 + np.exp(-np.array([2.0, -1.0])))
    np.testing.assert_allclose(q, [expected, expected], rtol=1e-6)
    assert bundle.router.models == ("org/small", "org/large")
    assert bundle.length.predict("org/large", [REQUEST]).tolist() == [[70.0]]
    assert bundle.length.template_overhead_tokens("org/small") == 9
    assert bundle.policy == Chimera(tau=math.inf, delta_s=0.1)
    assert bundle.profile("three") == EngineProfile("three", "org/small", 12.0, 6)
    assert bundle.token_counters["org/small"].count("a a b") == 3


def test_only_what_the_gateway_reads_is_in_it(parts: Parts, tmp_path: Path) -> None:
    for extra in ("length/skops/x.skops", "router/checkpoint/model.safetensors", "length/x.png"):
        path = parts.length.parent / extra
        path.parent.mkdir(exist_ok=True)
        path.write_text("for training")
    path = export_bundle(parts, "demo", None, tmp_path / "out")
    assert path == tmp_path / "out" / "demo" / "1"
    assert names(path) == {
        "README.md",
        "manifest.json",
        "policy.json",
        "length/length.json",
        "length/cells.json",
        "length/forest-0.npz",
        "length/forest-1.npz",
        "router/router.json",
        "router/model.onnx",
        "router/tokenizer.json",
        "latency/one.json",
        "latency/two.json",
        "latency/three.json",
        "tokenizers/one.json",
        "tokenizers/two.json",
    }
    assert names(tmp_path / "out") == {f"demo/1/{name}" for name in names(path)}


def test_the_manifest_says_where_it_comes_from(parts: Parts, tmp_path: Path) -> None:
    path = export_bundle(parts, "demo", 7, tmp_path / "out")
    manifest = read_manifest(path)
    assert (manifest.name, manifest.version) == ("demo", 7)
    assert manifest.engines == parts.engines
    distance = manifest.training["length"]["metrics"]["kendall_distance"]
    assert distance == {"overall": 0.2, "per_stage": {"solve": 0.3}}
    assert manifest.training["latency"]["two"]["mape"] == {"overall": 5.5}
    assert {"chimera-train", "python", "numpy", "onnxruntime"} <= set(manifest.versions)
    assert set(manifest.files) == names(path) - {"manifest.json"}
    assert find_problems(path, manifest) == []
    card = (path / "README.md").read_text()
    for line in (
        "# demo, version 7",
        "| two | org/large |",
        "| tau | inf |",
        "| length.kendall_distance.overall | 0.2 |",
        "| router.map_macro | 0.75 |",
        "| latency.two.mape.overall | 5.5 |",
    ):
        assert line in card, line
    assert "per_stage" not in card, "hundreds of figures say less than a dozen"


def test_versions_count_up_and_are_never_overwritten(parts: Parts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export_bundle(parts, "demo", None, out).name == "1"
    assert export_bundle(parts, "demo", 9, out).name == "9"
    assert export_bundle(parts, "demo", None, out).name == "10"
    assert export_bundle(parts, "other", None, out).name == "1"
    before = (out / "demo" / "9" / "manifest.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        export_bundle(parts, "demo", 9, out)
    assert (out / "demo" / "9" / "manifest.json").read_bytes() == before


def test_a_place_that_cannot_be_written(parts: Parts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file.out cannot be written \(Not a directory\)"):
        export_bundle(parts, "demo", None, tmp_path / "file" / "out")


def test_models_with_the_same_tokenizer_share_it(parts: Parts, tmp_path: Path) -> None:
    small = parts.tokenizers["org/small"]
    parts = dataclasses.replace(parts, tokenizers=dict.fromkeys(parts.tokenizers, small))
    path = export_bundle(parts, "demo", None, tmp_path / "out")
    assert {name for name in names(path) if name.startswith("tok")} == {"tokenizers/one.json"}
    counters = load_bundle(path).token_counters
    assert counters["org/small"] is counters["org/large"]


def broken(parts: Parts, what: str) -> Parts:
    if what == "no forest":
        return dataclasses.replace(parts, engines={**parts.engines, "two": "org/new"})
    if what == "no tokenizer":
        return dataclasses.replace(parts, tokenizers={**parts.tokenizers, "org/large": None})
    if what == "other model calibrated":
        path = parts.latency["two"]
        path.write_text(path.read_text().replace("org/large", "org/small"))
    if what == "damaged forest":
        (parts.length / "forest-0.npz").write_bytes(b"x")
    if what == "no network":
        (parts.router / "model.onnx").unlink()
    if what == "old router":
        path = parts.router / "router.json"
        path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    if what == "escaping":
        description = json.loads((parts.length / "length.json").read_text())
        description["sha256"]["../router/router.json"] = "0" * 64
        (parts.length / "length.json").write_text(json.dumps(description))
    if what == "policy":
        parts.policy.write_text("kind: chimera\nturbo: 9\n")
    if what == "policy schema":
        parts.policy.write_text("schema: 2\nkind: chimera\n")
    return parts


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("no forest", ConfigError, "'org/new' of engine 'two' has no tokenizer"),
        ("no tokenizer", ConfigError, "'org/large' of engine 'two' has no tokenizer.json"),
        ("other model calibrated", DataError, "measured with 'org/small', but it serves"),
        ("damaged forest", DataError, r"forest-0.npz was altered"),
        ("no network", DataError, "has no file 'model.onnx'"),
        ("old router", DataError, "schema version 1, older than the supported 2: make it again"),
        ("escaping", DataError, "has no file '../router/router.json'"),
        ("policy", ConfigError, "policy.yaml:2: chimera.turbo"),
        ("policy schema", ConfigError, "policy schema 2, but this version reads 1"),
    ],
)
def test_broken_parts_write_nothing(
    parts: Parts, tmp_path: Path, what: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export_bundle(broken(parts, what), "demo", None, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_model_that_was_not_fitted(parts: Parts, tmp_path: Path) -> None:
    path = parts.length / "length.json"
    path.write_text(path.read_text().replace("org/large", "org/other"))
    with pytest.raises(DataError, match=r"'org/large' of engine 'two'.*fit it on traces"):
        export_bundle(parts, "demo", None, tmp_path / "out")


def test_a_model_that_the_router_never_saw_is_warned_of(
    parts: Parts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = parts.router / "router.json"
    path.write_text(path.read_text().replace("org/large", "org/other"))
    bundle = load_bundle(export_bundle(parts, "demo", None, tmp_path / "out"))
    assert bundle.router.models == ("org/small", "org/other")
    assert "not fitted on org/large, only on org/small, org/other" in caplog.text


def test_a_router_of_words_brings_its_words_and_no_questions(parts: Parts, tmp_path: Path) -> None:
    shutil.rmtree(parts.router)
    parts.router.mkdir()
    sketch = TextSketch(["add", "buy"], np.ones(2, np.float32), np.eye(2, dtype=np.float32))
    sketch.save(parts.router)
    TermScorer(sketch, np.eye(2, dtype=np.float32), np.zeros(2)).save(parts.router)
    (parts.router / "neighbours.json").write_text("the questions")
    manifest = {
        "schema_version": 2,
        "kind": "tfidf_logreg",
        "labels": [
            {"model": "org/small", "scale": 2.0, "bias": 0.5},
            {"model": "org/large", "knots": [[0.0, 0.125], [1.0, 0.875]]},
        ],
        "latency_ms": {},
        "sha256": {path.name: sha256(path) for path in parts.router.iterdir()},
        "metrics": {},
    }
    (parts.router / "router.json").write_text(json.dumps(manifest))
    path = export_bundle(parts, "demo", None, tmp_path / "out")
    files = {name for name in names(path) if name.startswith("router/")}
    wanted = ("router.json", "sketch.npz", "terms.npz", "vocabulary.json")
    assert files == {f"router/{name}" for name in wanted}
    np.testing.assert_allclose(load_bundle(path).router.logits(["buy", "add"]), [[0, 1], [1, 0]])


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a b"])
def test_odd_names_are_refused(parts: Parts, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a bundle"):
        export_bundle(parts, name, None, tmp_path / "out")


def test_latency_files_by_file_and_directory(parts: Parts, tmp_path: Path) -> None:
    directory = parts.latency["one"].parent
    engines = list(parts.engines)
    assert find_latency_files([directory], engines) == parts.latency
    assert find_latency_files(list(parts.latency.values()), engines) == parts.latency
    with pytest.raises(ConfigError, match=r"Engine 'three' needs one.*none"):
        find_latency_files([parts.latency["one"], parts.latency["two"]], engines)
    with pytest.raises(ConfigError, match=r"Engine 'one' needs one.* and "):
        find_latency_files([directory, parts.latency["one"]], engines)

"""The run-time router against a network simple enough to compute by hand.

The logits of the network are the mean of one row of a table per token, padding left out.
"""

import json
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from chimera_train.errors import DataError
from chimera_train.files import sha256
from chimera_train.predict.calibration import Calibration
from chimera_train.predict.router import (
    MANIFEST,
    Router,
    confidences,
    load_router,
    warn_of_unknown,
)
from chimera_train.predict.router_scorers import NETWORKS, TOKENIZER

WORDS = ["[PAD]", "[UNK]", "[CLS]", "yes", "no"]
TABLE = np.array([[50, 50], [0, 0], [0, 0], [3, -1], [-2, 4]], dtype=np.float32)
MAX_LENGTH = 4
LABELS = [
    {"model": "package:small", "scale": 0.5, "bias": 0.25},
    {"model": "org/large", "scale": 2.0, "bias": -1.0},
]
NETWORK = {"encoder": "small", "max_length": MAX_LENGTH, "precision": "fp32"}


def _write_network(path: Path, table: np.ndarray) -> None:
    axes = numpy_helper.from_array(np.array([1], dtype=np.int64), "axes")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Einsum", ["rows", "mask"], ["sums"], equation="bsm,bs->bm"),
        helper.make_node("ReduceSum", ["mask", "axes"], ["lengths"]),
        helper.make_node("Div", ["sums", "lengths"], ["logits"]),
    ]
    tokens = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "mean",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, tokens),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(table, "table"), axes],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path
    )


def _write_router(directory: Path, **changes: Any) -> Path:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    tokenizer.save(str(directory / TOKENIZER))
    _write_network(directory / NETWORKS["fp32"], TABLE)
    _write_network(directory / NETWORKS["int8"], -TABLE)
    manifest = {
        "schema_version": 2,
        "kind": "encoder",
        "labels": LABELS,
        "network": NETWORK,
        "latency_ms": {"package:small": 12.5, "org/large": None},
        "sha256": {name: sha256(directory / name) for name in (*NETWORKS.values(), TOKENIZER)},
        "metrics": {},
    }
    (directory / MANIFEST).write_text(json.dumps(manifest | changes))
    return directory


def _expected(tokens: list[str], sign: float = 1.0) -> list[float]:
    rows = [TABLE[WORDS.index(token)] for token in ["[CLS]", *tokens]]
    logits = sign * np.mean(rows, axis=0, dtype=np.float64)
    return [
        1 / (1 + math.exp(-(label["scale"] * logit + label["bias"])))
        for label, logit in zip(LABELS, logits, strict=True)
    ]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Router:
    return load_router(_write_router(tmp_path_factory.mktemp("router")))


def test_probabilities_are_those_computed_by_hand(router: Router) -> None:
    assert router.models == ("package:small", "org/large")
    # Different lengths in one batch: the padding row of the table must not show.
    q = router.predict(["yes", "no yes no", "", "what"])
    expected = [
        _expected(["yes"]),
        _expected(["no", "yes", "no"]),
        _expected([]),
        _expected(["[UNK]"]),
    ]
    np.testing.assert_allclose(q, expected, rtol=1e-6)
    assert q.dtype == np.float64


def test_a_long_text_is_cut_at_max_length(router: Router) -> None:
    kept = ["yes"] * (MAX_LENGTH - 1)  # [CLS] counts
    q = router.predict([" ".join(kept + ["no"] * 50)])
    np.testing.assert_allclose(q, [_expected(kept)], rtol=1e-6)


def test_batches_keep_the_order(router: Router) -> None:
    texts = ["yes no", "no", "yes"] * 40
    np.testing.assert_allclose(
        router.predict(texts), np.vstack([router.predict([text]) for text in texts]), rtol=1e-6
    )
    assert router.predict([]).shape == (0, 2)


@given(st.lists(st.text(st.characters(), max_size=20), max_size=5))
def test_any_text_gets_probabilities(router: Router, texts: list[str]) -> None:
    q = router.predict(texts)
    assert q.shape == (len(texts), 2)
    assert ((q > 0) & (q < 1)).all()


def test_a_lone_surrogate_is_read_like_an_unknown_character(router: Router) -> None:
    np.testing.assert_array_equal(router.predict(["yes \ud800"]), router.predict(["yes ?"]))


def test_precision_chooses_the_network(tmp_path: Path) -> None:
    router = load_router(_write_router(tmp_path, network=NETWORK | {"precision": "int8"}))
    np.testing.assert_allclose(router.predict(["yes"]), [_expected(["yes"], -1)], rtol=1e-6)


def _drop(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _alter(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes() + b"\n")

    return change


def _set(**changes: Any) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / MANIFEST
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def _garble(name: str) -> Callable[[Path], None]:
    """Not a network or tokenizer at all, though the digest is right."""

    def change(directory: Path) -> None:
        path = directory / name
        path.write_bytes(b"garbage")
        digests = json.loads((directory / MANIFEST).read_text())["sha256"]
        _set(sha256=digests | {name: sha256(path)})(directory)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_drop(MANIFEST), r"router\.json does not exist"),
        (_drop("model.onnx"), r"model\.onnx cannot be read"),
        (_drop(TOKENIZER), r"tokenizer\.json cannot be read"),
        (_alter("model.onnx"), r"model\.onnx is not the file that"),
        (_alter(TOKENIZER), r"tokenizer\.json is not the file that"),
        (_garble("model.onnx"), r"model\.onnx is not a usable ONNX file"),
        (_garble(TOKENIZER), r"tokenizer\.json is not a usable tokenizer"),
        (_set(schema_version=3), r"schema version 3, newer .* update chimera-train"),
        (_set(schema_version=1), r"schema version 1, older than the supported 2: make it again"),
        (_set(schema_version="two"), "schema_version: input should be a valid integer"),
        (_set(labels=[{"scale": 1}]), r"labels\.0\.model: field required"),
        (_set(labels=[{"model": "a", "scale": -1}]), r"labels\.0\.scale: input should be greater"),
        (_set(labels=[{"model": "a", "scale": "x", "bias": 0}]), r"labels\.0\.scale: input should"),
        (_set(network=NETWORK | {"precision": "../../etc/passwd"}), "precision: input should be"),
        (_set(network=None), "'network' belongs to kind 'encoder'"),
        (_set(kind="prior"), "'network' belongs to kind 'encoder'"),
        (_set(kind="oracle"), "kind: input should be"),
        (_set(labels=LABELS[:1]), r"2 outputs for 1 label\(s\): fit it again"),
        (lambda directory: (directory / MANIFEST).write_text("[]"), "the file: input should be"),
        (lambda directory: (directory / MANIFEST).write_text("{"), "not valid JSON"),
    ],
)
def test_damage_is_refused_with_the_reason(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    directory = _write_router(tmp_path)
    damage(directory)
    with pytest.raises(DataError, match=message):
        load_router(directory)


class Counting:
    """A scorer whose logits are the lengths of texts, and which remembers what it was asked."""

    n_outputs = 2

    def __init__(self) -> None:
        self.asked: list[str] = []

    def logits(self, texts: Sequence[str]) -> np.ndarray:
        self.asked += texts
        return np.array([[len(text), -len(text)] for text in texts], dtype=float).reshape(-1, 2)

    def save(self, directory: Path) -> None:
        raise NotImplementedError


def test_a_text_is_scored_once() -> None:
    scorer = Counting()
    router = Router(scorer, Calibration.identity(["a", "b"]), remembered_texts=2)
    logits = router.logits(["one", "three", "one", "\ud800"])
    np.testing.assert_array_equal(logits[:, 0], [3, 5, 3, 1])
    assert scorer.asked == ["one", "three", "\ud800"]
    # The two that were asked for last are known, and the third is asked for again.
    np.testing.assert_array_equal(router.logits(["\ud800", "one", "three"])[:, 1], [-1, -3, -5])
    assert scorer.asked[3:] == ["three"]


def test_threads_share_a_router() -> None:
    router = Router(Counting(), Calibration.identity(["a", "b"]), remembered_texts=3)
    texts = ["x" * n for n in range(20)]
    with ThreadPoolExecutor(8) as pool:
        for logits in pool.map(router.logits, [texts] * 50):
            np.testing.assert_array_equal(logits[:, 0], range(20))


def test_a_model_never_seen_gets_the_mean_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    router = Router(Counting(), Calibration.identity(["a", "b"]))
    q = confidences(router, ["b", "new", "a", "b"], ["", "xx"])
    a, b = router.predict(["", "xx"]).T
    np.testing.assert_array_equal(q, np.transpose([b, (a + b) / 2, a, b]))
    warn_of_unknown(router, ["a", "b"])
    assert caplog.text == ""
    warn_of_unknown(router, ["a", "new", "new"])
    assert "not fitted on new, only on a, b" in caplog.text

"""The sketch against a network simple enough to compute by hand.

The embedding is the sum of one row of a table per token.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers

from chimera_train.errors import DataError
from chimera_train.predict.encoder import (
    NETWORK,
    TOKENIZER,
    Encoder,
    EncoderSketch,
    JointSketch,
)
from chimera_train.predict.text import TextSketch

WORDS = ["[PAD]", "[UNK]", "yes", "no"]
TABLE = np.array([[50, 50, 50], [0, 0, 0], [3, -1, 2], [-2, 4, 1]], dtype=np.float32)
MEAN = np.array([1.0, 0.5, -2.0])
PROJECTION = np.array([[1.0, 0.0], [0.5, -1.0], [0.0, 3.0]])
MAX_LENGTH = 4


def write_encoder(directory: Path) -> Path:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # no special tokens: "" is no token
    tokenizer.save(str(directory / TOKENIZER))
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Einsum", ["rows", "mask"], ["sums"], equation="bsm,bs->bm"),
    ]
    tokens = ["batch", "sequence"]
    graph = helper.make_graph(
        nodes,
        "sum",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, tokens),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, tokens),
        ],
        [helper.make_tensor_value_info("sums", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(TABLE, "table")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        directory / NETWORK,
    )
    return directory


@pytest.fixture(scope="module")
def sketch(tmp_path_factory: pytest.TempPathFactory) -> EncoderSketch:
    directory = write_encoder(tmp_path_factory.mktemp("encoder"))
    return EncoderSketch(Encoder(directory, max_length=MAX_LENGTH), MEAN, PROJECTION)


def expected(*tokens: str) -> np.ndarray:
    total = np.sum([TABLE[WORDS.index(token)] for token in tokens], axis=0, dtype=np.float64)
    return (total - MEAN) @ PROJECTION


def test_sketches_are_those_computed_by_hand(sketch: EncoderSketch) -> None:
    assert sketch.n_components == 2
    cases = {
        "yes": expected("yes"),
        "no what yes": expected("no", "yes"),
        "no " * 50: expected(*["no"] * MAX_LENGTH),
    }
    for text, vector in cases.items():
        np.testing.assert_allclose(sketch.describe(text)[0], vector, rtol=1e-6)


def test_novelty_is_the_distance_from_the_mean(sketch: EncoderSketch) -> None:
    assert sketch.describe("yes")[1] == pytest.approx(np.linalg.norm(TABLE[2] - MEAN))
    assert sketch.describe("")[1] == pytest.approx(np.linalg.norm(MEAN))


@given(st.text(st.characters()))
def test_any_text_has_a_finite_sketch(sketch: EncoderSketch, text: str) -> None:
    vector, novelty = sketch.describe(text)
    assert np.isfinite([*vector, novelty]).all()


@pytest.mark.parametrize("text", ["", "\ud800", "what"])
def test_a_text_of_unknown_words_is_like_none(sketch: EncoderSketch, text: str) -> None:
    np.testing.assert_array_equal(sketch.describe(text)[0], -MEAN @ PROJECTION)


def test_survives_a_round_trip(sketch: EncoderSketch, tmp_path: Path) -> None:
    names = sketch.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    loaded = EncoderSketch.load(tmp_path)
    for text in ("yes no", "no " * 50):
        np.testing.assert_array_equal(loaded.describe(text)[0], sketch.describe(text)[0])


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _garble(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(b"garbage")


def _arrays(**changes: object) -> Callable[[Path], None]:
    arrays = {"mean": MEAN, "projection": PROJECTION, "max_length": np.int64(4), **changes}
    return lambda directory: np.savez(directory / "encoder.npz", **arrays)


def _other_output(directory: Path) -> None:
    model = onnx.load(directory / NETWORK)
    rows = helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["batch", "sequence", 3])
    model.graph.output[0].CopyFrom(rows)  # what is to be summed
    onnx.save(model, directory / NETWORK)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove(NETWORK), r"encoder\.onnx is not a usable ONNX file"),
        (_remove(TOKENIZER), r"encoder-tokenizer\.json is not a usable tokenizer"),
        (_remove("encoder.npz"), r"encoder\.npz does not exist"),
        (_garble(NETWORK), r"encoder\.onnx is not a usable ONNX file"),
        (_garble(TOKENIZER), r"encoder-tokenizer\.json is not a usable tokenizer"),
        (_garble("encoder.npz"), r"encoder\.npz is not a readable array file"),
        (_other_output, r"encoder\.onnx has an output of shape \['batch', 'sequence', 3\]"),
        (_arrays(mean=MEAN[:2]), r"gives 3 numbers a text but .* mean of shape \(2,\)"),
        (_arrays(projection=PROJECTION.T), r"projection of shape \(2, 3\): fit again"),
        (_arrays(projection=MEAN), r"projection of shape \(3,\): fit again"),
        (_arrays(mean=MEAN * np.nan), "not finite"),
        (_arrays(projection=np.full((3, 2), np.inf)), "not finite"),
        (_arrays(max_length=np.int64(0)), "'max_length' is not a count"),
        (_arrays(max_length=np.array([4])), "'max_length' is not a count"),
        (_arrays(max_length=4.0), "'max_length' has type float64"),
    ],
)
def test_damage_is_refused_with_the_reason(
    sketch: EncoderSketch, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    sketch.save(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=message):
        EncoderSketch.load(tmp_path)


def test_terms_and_embedding_are_added(sketch: EncoderSketch, tmp_path: Path) -> None:
    terms = TextSketch(["yes"], np.ones(1, np.float32), np.array([[5, 7]], np.float32))
    joint = JointSketch(terms, sketch)
    names = joint.save(tmp_path)
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    for same in (joint, JointSketch.load(tmp_path)):
        vector, novelty = same.describe("yes no")
        np.testing.assert_allclose(vector, np.add(expected("yes", "no"), [5, 7]))
        assert novelty == sketch.describe("yes no")[1]


def test_functions_of_terms_and_embedding_must_be_as_many(sketch: EncoderSketch) -> None:
    terms = TextSketch(["yes"], np.ones(1, np.float32), np.array([[5]], np.float32))
    with pytest.raises(DataError, match="1 functions of the terms but 2 of the embedding"):
        JointSketch(terms, sketch)

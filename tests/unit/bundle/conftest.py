"""Small but real parts: every file is one that the run-time loaders accept."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from chimera_train.bundle.export import Parts, export_bundle
from chimera_train.predict.cells import SAMPLE, Cell, Cells
from chimera_train.predict.features import FEATURES_VERSION, Features
from chimera_train.predict.forest import ForestArrays

ENGINES = {"one": "org/small", "two": "org/large", "three": "org/small"}
MODELS = ("org/small", "org/large")
LOGITS = (2.0, -1.0)
TARGETS = {"org/small": 30.0, "org/large": 70.0}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_tokenizer(path: Path, words: str) -> Path:
    vocabulary = {word: index for index, word in enumerate(["[UNK]", *words.split()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_padding()
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


def write_router(directory: Path) -> Path:
    """A network whose logits are ``LOGITS`` for every text."""
    tokens = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
        for name in ("input_ids", "attention_mask")
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
    nodes = [
        helper.make_node("Add", ["input_ids", "attention_mask"], ["both"]),
        helper.make_node("Cast", ["both"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["number", "axes"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
        helper.make_node("Add", ["nothing", "constant"], ["logits"]),
    ]
    constants = [
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("constant", TensorProto.FLOAT, [1, 2], LOGITS),
    ]
    graph = helper.make_graph(nodes, "router", tokens, [logits], constants)
    opset = helper.make_opsetid("", 17)
    directory.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[opset], ir_version=8), directory / "model.onnx"
    )
    write_tokenizer(directory / "tokenizer.json", "a b c")
    names = ("model.onnx", "tokenizer.json")
    write(
        directory / "router.json",
        {
            "schema_version": 2,
            "kind": "encoder",
            "labels": [{"model": model, "scale": 1.0, "bias": 0.0} for model in MODELS],
            "network": {"encoder": "small", "max_length": 16, "precision": "fp32"},
            "latency_ms": dict.fromkeys(MODELS, 10.0),
            "sha256": {name: digest(directory / name) for name in names},
            "metrics": {"map_macro": 0.75},
        },
    )
    return directory


def write_length(directory: Path) -> Path:
    """One leaf a model: every length is its model's target."""
    directory.mkdir(parents=True)
    files = {}
    for index, (model, target) in enumerate(TARGETS.items()):
        files[model] = f"forest-{index}.npz"
        whole = np.array([0], dtype=np.int32)
        none = np.array([-1], dtype=np.int32)
        ForestArrays(
            roots=whole, feature=none, threshold=np.zeros(1, dtype=np.float32), left=none,
            right=none, leaf_start=np.array([0, 1], dtype=np.int32), leaf_ranks=whole,
            values=np.log1p([target]), value_rows=np.array([1], dtype=np.int32),
        ).save(directory / files[model])  # fmt: skip
    of_all = Cell(model=None, workflow=None, stage=None, rows=1, tokens=[30.0] * SAMPLE)
    of_cells = [
        Cell(model=model, workflow=workflow, stage=stage, rows=1, tokens=[target] * SAMPLE)
        for model, target in TARGETS.items()
        for workflow, stage in ((None, None), ("math", None), ("math", "solve"))
    ]
    names = [*files.values(), *Cells([of_all, *of_cells]).save(directory)]
    columns = Features(["math"], ["solve"], MODELS, None).columns
    bounds = {"least": [0] * 4, "most": [1000] * 4, "spread": 0, "novelty": 0}
    write(
        directory / "length.json",
        {
            "schema_version": 2,
            "target": "remaining",
            "estimator": "forest",
            "sketch": None,
            "pooled": False,
            "models": {
                model: {
                    "file": file,
                    "template_overhead_tokens": 9,
                    "rows": 1,
                    "bounds": bounds,
                }
                for model, file in files.items()
            },
            "workflows": ["math"],
            "stages": ["solve"],
            "features": {"version": FEATURES_VERSION, "columns": list(columns)},
            "quantiles": [0.5],
            "settings": {},
            "metrics": {"kendall_distance": {"overall": 0.2, "per_stage": {"solve": 0.3}}},
            "sha256": {name: digest(directory / name) for name in names},
        },
    )
    return directory


def write_latency(path: Path, model: str) -> Path:
    engine = {
        "model": model, "device": "cpu", "vllm_version": "1", "max_num_seqs": 8,
        "max_num_batched_tokens": 64, "max_model_len": 64, "block_size": 16, "num_kv_blocks": 99,
        "enable_prefix_caching": True, "enable_chunked_prefill": True,
        "scheduling_policy": "priority", "async_scheduling": True, "tensor_parallel_size": 1,
    }  # fmt: skip
    units = {
        "const": "ms", "prefill_tokens": "ms/token", "decode_tokens": "ms/token",
        "decode_ctx_tokens": "ms/token", "prefill_attn": "ms/token^2",
    }  # fmt: skip
    write(
        path,
        {
            "schema": 1,
            "kind": "eq9",
            "terms": [{"name": n, "unit": u, "coefficient": 1.0} for n, u in units.items()],
            "engine": engine,
            "device": "cpu",
            "fitted_on": {"steps": 9, "ranges": {}},
            "mape": {"overall": 5.5},
            "overhead_ms": 0.0,
            "decode_ms_per_token": 12.0,
            "max_batch_size": 6,
        },
    )
    return path


def write_parts(root: Path) -> Parts:
    small = write_tokenizer(root / "small" / "tokenizer.json", "a b")
    large = write_tokenizer(root / "large" / "tokenizer.json", "a b c d")
    policy = root / "policy.yaml"
    policy.write_text("schema: 1\nkind: chimera\ntau: .inf\ndelta_s: 0.1\n")
    return Parts(
        length=write_length(root / "length"),
        router=write_router(root / "router"),
        policy=policy,
        latency={
            engine: write_latency(root / "latency" / f"{engine}.json", model)
            for engine, model in ENGINES.items()
        },
        engines=ENGINES,
        tokenizers={"org/small": small, "org/large": large},
    )


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return write_parts(tmp_path / "parts")


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exported")
    return export_bundle(write_parts(root / "parts"), "demo", None, root / "out")


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    """A bundle of one's own to spoil."""
    return shutil.copytree(exported, tmp_path / "demo")

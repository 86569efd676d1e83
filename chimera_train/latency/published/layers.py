"""Steps composed from the times of a model's layers, as LLMServingSim profiles them.

A profile is a directory with ``meta.yaml`` and, for each degree N of tensor parallelism,
``tpN_dense.csv`` (time of a layer by number of tokens), ``tpN_per_sequence.csv`` (of what is done
once a sequence) and ``tpN_attention.csv`` (by prefill chunk and the context before it, and by
number of decoding sequences and the context of each). All times are microseconds, of one layer.

A step is composed for every point of the attention grid. Layers are interpolated between the
numbers of tokens that were profiled; a step beyond them is left out, never extrapolated. The gaps
between kernels are not in the profile, so an engine is a little slower than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, ConfigDict

from chimera_train.config import load_yaml
from chimera_train.errors import ConfigError, DataError
from chimera_train.latency.published.rows import Published
from chimera_train.pool.schema import EngineInfo

__all__ = ["read_layer_profile"]

# How often a layer is computed in each of the model's decoder layers, in their order.
_IN_EACH_LAYER = {
    "layernorm": 2,  # before attention and before the MLP
    "qkv_proj": 1,
    "rotary_emb": 1,
    "o_proj": 1,
    "gate_up_proj": 1,
    "act_fn": 1,
    "down_proj": 1,
}
_ONCE = ("embedding", "final_layernorm")
_ONCE_A_SEQUENCE = ("lm_head", "sampler")
# What the kernel of the smallest layer takes at the least.
_QUICKEST_US = 0.5
_GRID = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")


class _Meta(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    gpu: str
    vllm_version: str
    tp_degrees: list[int]


def read_layer_profile(
    directory: Path, layers: int, where: Mapping[str, str], engine: EngineInfo | None
) -> Published:
    """Steps of a model with ``layers`` decoder layers.

    ``where`` may name ``tp``, the degree of tensor parallelism, where several were profiled.

    Raises:
        ConfigError: ``meta.yaml`` lacks an entry, or ``where`` picks no degree that was profiled.
        DataError: a file is missing or malformed, has layers of which it is not known how often
            they are computed, or ``engine`` is not the one that was profiled.
    """
    meta = load_yaml(directory / "meta.yaml", _Meta)
    tp = _pick_degree(directory, meta, where)
    if engine is not None:
        _require_same(directory, meta, tp, engine)
    dense_file, sequence_file = (directory / f"tp{tp}_{n}.csv" for n in ("dense", "per_sequence"))
    dense = _layers(dense_file, "tokens", (*_IN_EACH_LAYER, *_ONCE))
    sequence = _layers(sequence_file, "sequences", _ONCE_A_SEQUENCE)
    grid_file = directory / f"tp{tp}_attention.csv"
    grid = _read(grid_file, (*_GRID, "time_us"))
    repeated = int(grid.duplicated([*_GRID, "time_us"]).sum())
    if repeated:
        raise DataError(f"{grid_file} has {repeated} rows that repeat an earlier one.")

    chunk, n_decode = grid["prefill_chunk"].to_numpy(), grid["n_decode"].to_numpy()
    tokens, n_seqs = chunk + n_decode, (chunk > 0) + n_decode
    inside = (tokens >= dense.index[0]) & (tokens <= dense.index[-1])
    inside &= (n_seqs >= sequence.index[0]) & (n_seqs <= sequence.index[-1])
    dense_us = [times * _at(dense, name, tokens) for name, times in _IN_EACH_LAYER.items()]
    each_layer = np.sum([grid["time_us"].to_numpy(), *dense_us], axis=0)
    once_us = [_at(dense, name, tokens) for name in _ONCE]
    once = np.sum([*once_us, *(_at(sequence, name, n_seqs) for name in _ONCE_A_SEQUENCE)], axis=0)
    steps = pd.DataFrame(
        {
            "engine": f"{meta.model} / {meta.gpu} x{tp}",
            "step": np.arange(len(grid)),
            "prefill_tokens": chunk,
            "decode_tokens": n_decode,
            "n_prefill": (chunk > 0).astype(int),
            "n_seqs": n_seqs,
            "prefill_attn": chunk * grid["kv_prefill"] + chunk * (chunk + 1) / 2,
            "decode_ctx_tokens": (n_decode * grid["kv_decode"]).astype(float),
            "max_prefill_ctx": chunk + grid["kv_prefill"],
            "max_decode_ctx": grid["kv_decode"],
            "step_ms": (layers * each_layer + once) / 1000,
            "origin": "composed",
        }
    )
    beyond = "have more tokens or sequences than the layers were profiled with"
    facts = {
        "layers": layers,
        "engine": {"model": meta.model, "device": meta.gpu, "vllm_version": meta.vllm_version},
        "tensor_parallel_size": tp,
        "step_ms": "sum of layer times in microseconds, interpolated between numbers of tokens",
    }
    return Published(steps[inside].to_dict("records"), {beyond: int((~inside).sum())}, facts)


def _pick_degree(directory: Path, meta: _Meta, where: Mapping[str, str]) -> int:
    degrees = {str(degree): degree for degree in meta.tp_degrees}
    unknown = sorted(set(where) - {"tp"})
    if unknown:
        raise ConfigError(f"A layer profile is picked by --where tp=N only, not {unknown[0]}.")
    picked = where.get("tp", next(iter(degrees)) if len(degrees) == 1 else "")
    if picked not in degrees:
        raise ConfigError(f"{directory} was profiled with tp {', '.join(degrees)}: --where tp=N.")
    return degrees[picked]


def _require_same(directory: Path, meta: _Meta, tp: int, engine: EngineInfo) -> None:
    profiled = {
        "model": meta.model,
        "vllm_version": meta.vllm_version,
        "tensor_parallel_size": tp,
    }
    differing = [
        f"{name} ({value} there, {getattr(engine, name)} in the engine's file)"
        for name, value in profiled.items()
        if getattr(engine, name) != value
    ]
    if differing:
        raise DataError(f"{directory} is a profile of another engine: {', '.join(differing)}.")


def _layers(path: Path, count: str, wanted: tuple[str, ...]) -> pd.DataFrame:
    """Time of each layer (columns) by count (rows, increasing)."""
    frame = _read(path, (count, "time_us"), text="layer")
    found = set(frame["layer"])
    if found != set(wanted):
        raise DataError(
            f"{path} has the layers {', '.join(sorted(found))}, but it is known how a step is"
            f" composed of {', '.join(sorted(wanted))} only."
        )
    if frame.duplicated(["layer", count]).any():
        raise DataError(f"{path} has a layer twice for one number of {count}.")
    table = frame.pivot(index=count, columns="layer", values="time_us")
    if table.isna().to_numpy().any():
        raise DataError(f"{path} lacks a layer for some number of {count}.")
    return table.sort_index()


def _read(path: Path, numbers: tuple[str, ...], text: str | None = None) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable CSV file: {error}.") from error
    missing = [name for name in (*numbers, *([text] if text else [])) if name not in frame]
    if missing:
        raise DataError(f"{path} lacks the column(s) {', '.join(missing)}.")
    values = frame[list(numbers)].apply(pd.to_numeric, errors="coerce")
    bad = ~(np.isfinite(values) & (values >= 0)).all(axis=1) | (values["time_us"] == 0)
    if bad.any():
        raise DataError(f"{path} has {int(bad.sum())} rows with a value that is no time or count.")
    quickest = float(values["time_us"].quantile(0.1)) if len(values) else np.inf
    if quickest < _QUICKEST_US:
        raise DataError(
            f"{path} has a time_us of {quickest:.2g} or less in a tenth of its rows, which no layer"
            " reaches: are they milliseconds or seconds?"
        )
    return frame.assign(**{name: values[name] for name in numbers})


def _at(table: pd.DataFrame, layer: str, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.interp(counts, table.index.to_numpy(), table[layer].to_numpy())

"""Steps composed from layer times: by hand, and as somebody else composed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import ConfigError, DataError
from chimera_train.latency.published.layers import read_layer_profile
from chimera_train.latency.steps import read_steps

META = "model: org/m\ngpu: G\nvllm_version: '0.9'\ntp_degrees: [1]\nother: {a: 1}\n"
# Microseconds at 1 token; layers take ten times as much at 65.
DENSE = {
    "layernorm": 1, "qkv_proj": 2, "rotary_emb": 3, "o_proj": 4, "gate_up_proj": 5, "act_fn": 6,
    "down_proj": 7, "embedding": 8, "final_layernorm": 9,
}  # fmt: skip


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    directory = tmp_path / "profile"
    directory.mkdir()
    (directory / "meta.yaml").write_text(META)
    dense = [f"{name},{n},{us * k}" for name, us in DENSE.items() for n, k in ((1, 1), (65, 10))]
    (directory / "tp1_dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    (directory / "tp1_per_sequence.csv").write_text(
        "layer,sequences,time_us\nlm_head,1,1000\nlm_head,3,1200\nsampler,1,10\nsampler,3,30\n"
    )
    (directory / "tp1_attention.csv").write_text(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n"
        "0,0,1,16,100\n32,128,1,16,200\n64,0,0,0,300\n0,0,4,16,400\n128,0,0,0,500\n"
    )
    return directory


def test_by_hand(profile: Path) -> None:
    published = read_layer_profile(profile, 4, {}, None)
    decode, mixed, prefill = published.rows
    # In each layer two layernorms and once all others: 29; embedding and final layernorm: 17.
    assert decode["step_ms"] == pytest.approx((4 * (29 + 100) + 17 + 1000 + 10) / 1000)
    # 33 of 65 tokens are half of the way from 1 to 10; 2 sequences half of that from 1 to 3.
    assert mixed["step_ms"] == pytest.approx((4 * (29 * 5.5 + 200) + 17 * 5.5 + 1100 + 20) / 1000)
    assert mixed["prefill_attn"] == 32 * 128 + 32 * 33 / 2
    assert (mixed["decode_ctx_tokens"], mixed["max_prefill_ctx"], mixed["n_seqs"]) == (16, 160, 2)
    assert (prefill["prefill_tokens"], prefill["origin"]) == (64, "composed")
    assert list(published.left_out.values()) == [2], "4 sequences and 128 tokens are not profiled"


@pytest.mark.parametrize(
    ("name", "old", "new", "error", "message"),
    [
        ("meta.yaml", "gpu: G\n", "", ConfigError, r"meta\.yaml:1: gpu"),
        ("meta.yaml", "[1]", "[1, 2]", ConfigError, "profiled with tp 1, 2: --where tp=N"),
        ("tp1_dense.csv", "act_fn,", "moe,", DataError, "has the layers .*moe.*, but it is known"),
        ("tp1_dense.csv", "act_fn,65", "act_fn,1", DataError, "has a layer twice"),
        ("tp1_dense.csv", "act_fn,65", "act_fn,64", DataError, "lacks a layer for some"),
        ("tp1_attention.csv", "16,100", "16,-1", DataError, "has 1 rows with a value that is no"),
        ("tp1_attention.csv", "16,100", "16,soon", DataError, "has 1 rows with a value that is no"),
        ("tp1_attention.csv", "0,0,4,16,400", "0,0,1,16,100", DataError, "1 rows that repeat an"),
        ("tp1_attention.csv", "00\n", "e-3\n", DataError, "are they milliseconds or seconds"),
        ("tp1_per_sequence.csv", "time_us", "us", DataError, r"lacks the column\(s\) time_us"),
    ],
)
def test_bad_profiles(
    profile: Path, name: str, old: str, new: str, error: type[Exception], message: str
) -> None:
    path = profile / name
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(error, match=message):
        read_layer_profile(profile, 4, {}, None)


def test_another_degree_or_engine(profile: Path, step_time) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="profiled with tp 1: --where tp=N"):
        read_layer_profile(profile, 4, {"tp": "2"}, None)
    with pytest.raises(ConfigError, match="picked by --where tp=N only, not gpu"):
        read_layer_profile(profile, 4, {"gpu": "G"}, None)
    engine = step_time(model="org/m", vllm_version="0.9").engine
    assert read_layer_profile(profile, 4, {"tp": "1"}, engine).rows
    with pytest.raises(DataError, match=r"another engine: model \(org/m there, x in"):
        read_layer_profile(profile, 4, {}, engine.model_copy(update={"model": "x"}))
    (profile / "tp1_attention.csv").unlink()
    with pytest.raises(DataError, match="not a readable CSV"):
        read_layer_profile(profile, 4, {}, None)


def test_the_public_profile_as_it_was_composed_before(public_steps: Path) -> None:
    (directory,) = (public_steps.parent / "profile").iterdir()
    counts = ["prefill_tokens", "decode_tokens", "prefill_attn", "decode_ctx_tokens"]
    composed = pd.DataFrame(read_layer_profile(directory, 32, {}, None).rows).set_index(counts)
    before = read_steps(public_steps).frame.set_index(counts)
    assert len(before) == 5150 < len(composed)
    np.testing.assert_allclose(composed["step_ms"][before.index], before["step_ms"], rtol=1e-6)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.pool.schema import EngineInfo

TRUE = {
    "const": 8.0,
    "prefill_tokens": 0.05,
    "decode_tokens": 0.2,
    "decode_ctx_tokens": 3e-4,
    "prefill_attn": 1e-5,
}


def true_ms(frame: pd.DataFrame) -> pd.Series:
    """Eq. 9 written out once more, independently of the package."""
    return (
        TRUE["const"]
        + TRUE["prefill_tokens"] * frame["prefill_tokens"]
        + TRUE["decode_tokens"] * frame["decode_tokens"]
        + TRUE["decode_ctx_tokens"] * frame["decode_ctx_tokens"]
        + TRUE["prefill_attn"] * frame["prefill_attn"]
    )


@pytest.fixture
def true_terms() -> dict[str, float]:
    return dict(TRUE)


@pytest.fixture
def steps_frame() -> Callable[..., pd.DataFrame]:
    """Steps that follow TRUE, with the given share of mixed ones and lognormal noise."""

    def make(
        n: int = 600, *, mixed: float = 0.34, noise: float = 0.0, seed: int = 0
    ) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        regime = rng.choice(3, size=n, p=[(1 - mixed) / 2, (1 - mixed) / 2, mixed])
        # One prefill chunk a step, after `computed` tokens that earlier steps have done.
        chunk = np.where(regime == 0, 0, rng.choice([16, 64, 128, 256, 512, 1024], n))
        computed = np.where(regime == 0, 0, rng.choice([0, 0, 128, 512], n))
        decode = np.where(regime == 1, 0, rng.integers(1, 33, n))
        context = rng.integers(20, 2000, n)
        frame = pd.DataFrame(
            {
                "engine": "small",
                "step": np.arange(n),
                "prefill_tokens": chunk,
                "decode_tokens": decode,
                "decode_ctx_tokens": decode * context,
                "prefill_attn": chunk * computed + chunk * (chunk + 1) / 2,
                "max_prefill_ctx": chunk + computed,
                "max_decode_ctx": np.where(decode > 0, context, 0),
            }
        )
        frame["step_ms"] = true_ms(frame) * rng.lognormal(0, noise, n)
        return frame

    return make


@pytest.fixture
def engine() -> EngineInfo:
    return EngineInfo(
        model="package:small",
        device="cpu",
        vllm_version="0.32.0",
        max_num_seqs=32,
        max_num_batched_tokens=2048,
        max_model_len=2048,
        block_size=16,
        num_kv_blocks=1000,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        scheduling_policy="priority",
        async_scheduling=True,
        tensor_parallel_size=1,
    )


@pytest.fixture
def public_steps(public_data) -> Path:
    """Step times of an RTX 4090, from the public data (see its README)."""
    return public_data("latency", "llmservingsim", "steps_rtx4090_llama31_8b.csv.gz")

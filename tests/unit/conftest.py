import os
from pathlib import Path

import pytest

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_time import StepTimeModel


@pytest.fixture(scope="session")
def public_data():
    """The path of a file of the public data (see its README); the test is skipped without it."""
    root = os.environ.get("CHIMERA_SHARED_DATA")
    data = Path(root) if root else Path(__file__).parents[3] / "shared" / "data"

    def find(*parts) -> Path:
        path = data.joinpath(*parts)
        if not path.is_file():
            pytest.skip(f"public data is not here: {path} (set CHIMERA_SHARED_DATA)")
        return path

    return find


@pytest.fixture(scope="session")
def step_time():
    """A factory of step-time models: coefficients by name, engine limits, load constants."""

    def make(
        *,
        terms=None,
        model="m",
        decode_ms_per_token=10.0,
        max_batch_size=4,
        sharing_curve=(),
        ranges=None,
        **limits,
    ) -> StepTimeModel:
        info = {
            "model": model,
            "device": "test",
            "vllm_version": "0",
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            "max_model_len": 4096,
            "block_size": 16,
            "num_kv_blocks": 1025,
            "enable_prefix_caching": False,
            "enable_chunked_prefill": True,
            "scheduling_policy": "priority",
            "async_scheduling": False,
            "tensor_parallel_size": 1,
            **limits,
        }
        zeros = dict.fromkeys(
            ["const", "prefill_tokens", "decode_tokens", "decode_ctx_tokens", "prefill_attn"], 0.0
        )
        return StepTimeModel(
            kind="eq9",
            terms={**zeros, **(terms or {"const": 10.0})},
            engine=EngineInfo(**info),
            overhead_ms=0.0,
            decode_ms_per_token=decode_ms_per_token,
            max_batch_size=max_batch_size,
            ranges=ranges or {},
            sharing_curve=sharing_curve,
        )

    return make

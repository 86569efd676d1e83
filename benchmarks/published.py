"""An engine with the step times published for Qwen3-8B on an H100 (SFS), for the benchmarks."""

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_time import StepTimeModel

__all__ = ["qwen3_8b"]

MEAN_CONTEXT_TOKENS = 600


def qwen3_8b(
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    num_kv_blocks: int,
    max_batch_size: int,
) -> StepTimeModel:
    """The model, for an engine with these limits and blocks of 16 tokens."""
    info = EngineInfo(
        model="qwen3-8b",
        device="H100",
        vllm_version="published",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=16,
        num_kv_blocks=num_kv_blocks,
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        scheduling_policy="priority",
        async_scheduling=False,
        tensor_parallel_size=1,
    )
    terms = {
        "const": 7.296,
        "prefill_tokens": 2.079e-2,
        "decode_tokens": 2.563e-2,
        "decode_ctx_tokens": 4.649e-5,
        # Published for Σ n², of which prefill_attn is half.
        "prefill_attn": 2 * 5.120e-7,
    }
    decode_ms = terms["const"] + max_batch_size * (
        terms["decode_tokens"] + MEAN_CONTEXT_TOKENS * terms["decode_ctx_tokens"]
    )
    return StepTimeModel("eq9", terms, info, 0.0, decode_ms, max_batch_size, {})

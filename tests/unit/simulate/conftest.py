import pytest

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.traces.store import write_table


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
            ranges={},
            sharing_curve=sharing_curve,
        )

    return make


@pytest.fixture(scope="session")
def traces_dir(tmp_path_factory):
    """Traces of two models on ten questions, two samples each, in one or two stages."""
    directory = tmp_path_factory.mktemp("traces")
    programs, stages = [], []
    for question in range(10):
        for model in ("m-small", "m-large"):
            for sample in range(2):
                name = f"q{question}-{model}-{sample}"
                outputs = [10 + question + sample, 5][: 1 + question % 2]
                programs.append(
                    {
                        "program_id": name,
                        "task": "sums",
                        "question_id": f"q{question}",
                        "workflow": "math",
                        "model": model,
                        "sample": sample,
                        "n_stages": len(outputs),
                        "total_output_tokens": sum(outputs),
                        "score": float(model == "m-large" or question < 5),
                    }
                )
                stages += [
                    {
                        "program_id": name,
                        "stage_index": index,
                        "stage": ("solve", "verify")[index],
                        "prompt_tokens": 20 + 10 * index,
                        "system_tokens": 4,
                        "user_tokens": 14 + 10 * index,
                        "output_tokens": tokens,
                        "attempt": 0,
                        "user_text": f"user {name} {index}",
                    }
                    for index, tokens in enumerate(outputs)
                ]
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(
        directory,
        "questions",
        [{"question_id": f"q{i}", "task": "sums", "text": f"question {i}"} for i in range(10)],
    )
    return directory

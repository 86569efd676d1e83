"""The simulated engine against vLLM's own scheduler, step for step.

No model runs: every scheduled request that has caught up is given one token. vLLM calls this
interface non-public; where it has changed, so may the rules that are simulated.
"""

import random

import numpy as np
import pytest

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_arrays as rows
from chimera_train.predict import engine_step
from chimera_train.predict.engine_arrays import EngineArrays
from chimera_train.predict.engine_cohort import dissolve_cohort
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.simulate.engine import SimulatedEngine

# The warnings of vLLM and torch are theirs.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

BLOCK_SIZE = 16
MAX_MODEL_LEN = 256
ANY_TOKEN, EOS = 7, 8


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    """A model that vLLM accepts and nobody loads."""
    from transformers import LlamaConfig

    directory = tmp_path_factory.mktemp("model")
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=128,
        max_position_embeddings=MAX_MODEL_LEN,
    ).save_pretrained(directory)
    return directory


def vllm_scheduler(model_dir, info):
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = VllmConfig(
        model_config=ModelConfig(
            model=str(model_dir),
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            dtype="float32",
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=info.max_num_seqs,
            max_num_batched_tokens=info.max_num_batched_tokens,
            max_model_len=MAX_MODEL_LEN,
            is_encoder_decoder=False,
            policy=info.scheduling_policy,
            enable_chunked_prefill=True,
            async_scheduling=info.async_scheduling,
        ),
        cache_config=CacheConfig(
            block_size=BLOCK_SIZE, enable_prefix_caching=info.enable_prefix_caching
        ),
    )
    config.cache_config.num_gpu_blocks = info.num_kv_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return (AsyncScheduler if info.async_scheduling else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=info.num_kv_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
    )


def vllm_request(number, tokens, output, priority):
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    hash_fn = get_hash_fn_by_name("sha256")
    init_none_hash(hash_fn)
    return Request(
        request_id=str(number),
        prompt_token_ids=tokens,
        sampling_params=SamplingParams(max_tokens=output, stop_token_ids=[EOS]),
        pooling_params=None,
        arrival_time=float(number),
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, hash_fn),
    )


def vllm_begin_step(scheduler, requests):
    """Schedule a step; it, and which of its requests it gives a token."""
    scheduled = scheduler.schedule()
    yields = {}
    for request_id in scheduled.num_scheduled_tokens:
        request = requests[int(request_id)]
        coming = max(request.num_output_placeholders, 1)
        yields[request_id] = request.num_computed_tokens >= request.num_tokens + coming - 1
    return scheduled, yields


def vllm_end_step(scheduler, scheduled, yields, requests, ends):
    """End a step. The model says its last word to those that it ends when they are as long."""
    from vllm.v1.outputs import ModelRunnerOutput

    def token(number):
        generated = requests[number].num_output_tokens
        return EOS if generated + 1 == ends.get(number) else ANY_TOKEN

    ids = list(scheduled.num_scheduled_tokens)
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
        sampled_token_ids=[[token(int(i))] if yields[i] else [] for i in ids],
    )
    scheduler.update_from_output(scheduled, output)


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_step_is_vllms(model_dir, seed, asynchronous, caching):
    rng = random.Random(seed)
    calls = [
        (rng.randint(1, 100), rng.randint(1, 60), rng.randint(0, 3), rng.randint(0, 30))
        for _ in range(rng.randint(2, 16))
    ]
    longest = max(prompt + output for prompt, output, _, _ in calls)
    max_num_seqs = rng.randint(1, 6)
    info = EngineInfo(
        model="any",
        device="cpu",
        vllm_version="0.32",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max(max_num_seqs, 4), 40),
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_kv_blocks=2 - (-(longest - 1) // BLOCK_SIZE) + rng.randint(0, 5),
        enable_prefix_caching=caching,
        enable_chunked_prefill=True,
        scheduling_policy=rng.choice(["priority", "fcfs"]),
        async_scheduling=asynchronous,
        tensor_parallel_size=1,
    )
    scheduler = vllm_scheduler(model_dir, info)
    engine = SimulatedEngine(
        StepTimeModel("tokens", {"const": 1.0}, info, 0.0, 1.0, 1, {}),
        capacity=len(calls),
        prompt_keys=MAX_MODEL_LEN // BLOCK_SIZE,
    )
    pending = [(*call, number) for number, call in enumerate(sorted(calls, key=lambda c: c[3]))]
    requests, ends, under_way, n_finished = {}, {}, [], 0
    for now in range(10_000):
        while pending and (pending[0][3] <= now or not engine.has_work):
            prompt, output, priority, _, number = pending.pop(0)
            shared, text, stops = rng.randint(0, prompt), rng.randint(1, 2), rng.random() < 0.5
            requests[number] = vllm_request(
                number,
                [text] * shared + [10 + number] * (prompt - shared),
                MAX_MODEL_LEN if stops else output,
                priority if info.scheduling_policy == "priority" else 0,
            )
            if stops:
                ends[number] = output
            scheduler.add_request(requests[number])
            # Prompts of one text differ from the block on in which another text begins.
            keys = [100 * text + block for block in range(shared // BLOCK_SIZE)]
            engine.submit(number, prompt, output, priority, prompt_keys=keys, stops=stops)

        is_step = engine_step.begin_step(engine.arrays, float(now))
        while len(under_way) < 1 + asynchronous and scheduler.has_unfinished_requests():
            step = vllm_begin_step(scheduler, requests)
            if step[0].total_num_scheduled_tokens == 0:
                break
            under_way.append(step)
        assert is_step == bool(under_way)
        running = engine.arrays.queues[rows.RUNNING, : engine.arrays.counts[rows.N_RUNNING]]
        numbers = [str(engine._request_id[slot]) for slot in running]
        assert numbers == [request.request_id for request in scheduler.running]
        apart = EngineArrays(*map(np.copy, engine.arrays))
        dissolve_cohort(apart)
        for row, (step, _) in zip((rows.CHUNK, rows.AHEAD), under_way, strict=False):
            chunks = dict(zip(numbers, apart.requests[row, running].tolist(), strict=True))
            assert {i: n for i, n in chunks.items() if n} == {
                i: n for i, n in step.num_scheduled_tokens.items() if i in numbers
            }
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert engine.arrays.counts[rows.FREE_BLOCKS] == free
        if not is_step:
            continue
        assert engine.arrays.step[:2].sum() == under_way[0][0].total_num_scheduled_tokens

        vllm_end_step(scheduler, *under_way.pop(0), requests, ends)
        for done in engine.end_step(now + 1.0):
            assert requests[done.request_id].is_finished()
            assert requests[done.request_id].num_preemptions == done.preemptions
            n_finished += 1
        if n_finished == len(calls) and not engine.has_work:
            break
    assert n_finished == len(calls)
    assert not scheduler.has_unfinished_requests()

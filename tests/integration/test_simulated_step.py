"""The simulated engine against vLLM's own scheduler, step for step.

No model runs: every scheduled request that has caught up is given one token. vLLM calls this
interface non-public; where it has changed, so may the rules that are simulated.
"""

import random

import pytest

from chimera_train.pool.schema import EngineInfo
from chimera_train.predict import engine_step
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.simulate.engine import SimulatedEngine

# The warnings of vLLM and torch are theirs.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

BLOCK_SIZE = 16
MAX_MODEL_LEN = 256


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
            async_scheduling=False,
        ),
        cache_config=CacheConfig(
            block_size=BLOCK_SIZE, enable_prefix_caching=info.enable_prefix_caching
        ),
    )
    config.cache_config.num_gpu_blocks = info.num_kv_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return Scheduler(
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
        sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
        pooling_params=None,
        arrival_time=float(number),
        priority=priority,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, hash_fn),
    )


def vllm_end_step(scheduler, scheduled, requests):
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(scheduled.num_scheduled_tokens)
    caught_up = [requests[i].num_computed_tokens >= requests[i].num_tokens for i in map(int, ids)]
    output = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
        sampled_token_ids=[[7] if done else [] for done in caught_up],
    )
    scheduler.update_from_output(scheduled, output)


@pytest.mark.parametrize("seed", range(20))
def test_every_step_is_vllms(model_dir, seed):
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
        num_kv_blocks=1 - (-(longest - 1) // BLOCK_SIZE) + rng.randint(0, 5),
        enable_prefix_caching=False,
        enable_chunked_prefill=True,
        scheduling_policy=rng.choice(["priority", "fcfs"]),
        async_scheduling=False,
        tensor_parallel_size=1,
    )
    scheduler = vllm_scheduler(model_dir, info)
    engine = SimulatedEngine(
        StepTimeModel("tokens", {"const": 1.0}, info, 0.0, 1.0, 1, {}), capacity=len(calls)
    )
    arrays = (engine._requests, engine._times, engine._queues, engine._counts)
    pending = [(*call, number) for number, call in enumerate(sorted(calls, key=lambda c: c[3]))]
    requests, n_finished = {}, 0
    for now in range(10_000):
        while pending and (pending[0][3] <= now or not engine.has_work):
            prompt, output, priority, _, number = pending.pop(0)
            requests[number] = vllm_request(
                number,
                [1] * prompt,
                output,
                priority if info.scheduling_policy == "priority" else 0,
            )
            scheduler.add_request(requests[number])
            engine.submit(number, prompt, output, priority)

        scheduled = scheduler.schedule()
        engine_step.schedule_step(engine._limits, *arrays, float(now))
        running = engine._queues[engine_step.RUNNING, : engine._counts[engine_step.N_RUNNING]]
        chunks = {
            str(engine._request_id[slot]): engine._requests[engine_step.CHUNK, slot]
            for slot in running
        }
        assert list(chunks) == [request.request_id for request in scheduler.running]
        assert {i: n for i, n in chunks.items() if n} == scheduled.num_scheduled_tokens
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert engine._counts[engine_step.FREE_BLOCKS] == free

        vllm_end_step(scheduler, scheduled, requests)
        for done in engine.end_step(now + 1.0):
            assert requests[done.request_id].is_finished()
            assert requests[done.request_id].num_preemptions == done.preemptions
            n_finished += 1
        assert engine.has_work == scheduler.has_unfinished_requests()
        if n_finished == len(calls):
            break
    assert n_finished == len(calls)


@pytest.mark.parametrize(
    ("shared", "prompt"),
    [
        (48, 96),
        (40, 96),  # 32 of them are whole blocks
        (48, 48),  # the last token is computed
        (10, 96),
    ],
)
def test_a_prefix_hit_is_vllms(model_dir, shared, prompt):
    """A request that ended left its prompt in the cache; another takes up most of the memory."""
    info = EngineInfo(
        model="any",
        device="cpu",
        vllm_version="0.32",
        max_num_seqs=4,
        max_num_batched_tokens=40,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_kv_blocks=10,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        scheduling_policy="fcfs",
        async_scheduling=False,
        tensor_parallel_size=1,
    )
    scheduler = vllm_scheduler(model_dir, info)
    head = list(range(10, 58))
    requests = [
        vllm_request(0, head, 2, 0),
        vllm_request(1, [2] * 64, 10, 0),
        vllm_request(2, head[:shared] + [3] * (prompt - shared), 4, 0),
    ]
    scheduler.add_request(requests[0])
    while scheduler.has_unfinished_requests():
        vllm_end_step(scheduler, scheduler.schedule(), requests)

    engine = SimulatedEngine(
        StepTimeModel("tokens", {"const": 1.0}, info, 0.0, 1.0, 1, {}), capacity=3
    )
    for request in requests[1:]:
        scheduler.add_request(request)
        number = int(request.request_id)
        engine.submit(number, request.num_prompt_tokens, request.max_tokens, 0)
    engine._requests[engine_step.CACHED, engine._request_id == 2] = shared
    arrays = (engine._requests, engine._times, engine._queues, engine._counts)
    waited, computed = 0, 0
    while scheduler.has_unfinished_requests():
        scheduled = scheduler.schedule()
        engine_step.schedule_step(engine._limits, *arrays, 0.0)
        running = engine._queues[engine_step.RUNNING, : engine._counts[engine_step.N_RUNNING]]
        chunks = {
            str(engine._request_id[slot]): engine._requests[engine_step.CHUNK, slot]
            for slot in running
        }
        assert chunks == scheduled.num_scheduled_tokens
        free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        assert engine._counts[engine_step.FREE_BLOCKS] == free
        computed += chunks.get("2", 0)
        waited += computed == 0
        vllm_end_step(scheduler, scheduled, requests)
        engine.end_step(0.0)
    assert not engine.has_work
    hit = min(shared, prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert computed == prompt - hit + 3  # the last of 4 output tokens is not fed
    # Hit or not, the blocks of a long prompt have to be free.
    assert (waited > 5) == (prompt == 96)

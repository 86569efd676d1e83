"""From two coefficient files to a decision, beside the same calculation by hand.

Mean context 80 tokens.

    small: 10 ms + 0.5 ms/token + 0.001 ms/ctx token; at most 32 sequences, 100 KV blocks of 16
           KV 1600 tokens / 80 = 20 sequences; 10 + 20·(0.5 + 0.001·80) = 21.6 ms
    large: 20 ms + 1.0 ms/token + 0.002 ms/ctx token; at most 8 sequences, 1000 KV blocks of 16
           KV 16000 / 80 = 200, so 8 sequences; 20 + 8·(1.0 + 0.002·80) = 29.28 ms

With 300 predicted tokens in flight on small and 50 on large

    L = 300·21.6/20 = 324 ms    and    50·29.28/8 = 183 ms
"""

import numpy as np
import pytest

from chimera_train.files import write_json
from chimera_train.latency.load_constants import load_constants
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_terms import TERMS, compile_model
from chimera_train.predict.step_time import SCHEMA, StepTimeModel
from chimera_train.scheduling.model import EngineProfile, Request
from chimera_train.scheduling.policy import Chimera
from chimera_train.scheduling.scheduler import Scheduler

pytestmark = pytest.mark.golden

MEAN_CONTEXT_TOKENS = 80.0
ENGINES = {
    "small": ((10.0, 0.5, 0.001), 32, 100),
    "large": ((20.0, 1.0, 0.002), 8, 1000),
}


@pytest.fixture
def profiles(tmp_path):
    """The engines as the scheduler gets them: through coefficient files that are loaded again."""
    found = []
    for name, ((const, decode, context), max_num_seqs, num_kv_blocks) in ENGINES.items():
        engine = EngineInfo(
            model=name,
            device="by hand",
            vllm_version="0",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=2048,
            max_model_len=1024,
            block_size=16,
            num_kv_blocks=num_kv_blocks,
            enable_prefix_caching=False,
            enable_chunked_prefill=True,
            scheduling_policy="priority",
            async_scheduling=False,
            tensor_parallel_size=1,
        )
        terms = {
            "const": const,
            "prefill_tokens": 0.1,
            "decode_tokens": decode,
            "decode_ctx_tokens": context,
            "prefill_attn": 0.0,
        }
        batch, decode_ms = load_constants(compile_model(terms), engine, MEAN_CONTEXT_TOKENS)
        path = tmp_path / f"{name}.json"
        write_json(
            path,
            {
                "schema": SCHEMA,
                "kind": "eq9",
                "terms": [
                    {"name": term, "unit": TERMS[term].unit, "coefficient": value}
                    for term, value in terms.items()
                ],
                "engine": engine.model_dump(),
                "device": engine.device,
                "fitted_on": {"ranges": {}},
                "overhead_ms": 0.0,
                "decode_ms_per_token": decode_ms,
                "max_batch_size": batch,
            },
        )
        model = StepTimeModel.load(path, expect=engine)
        found.append(EngineProfile(name, name, model.decode_ms_per_token, model.max_batch_size))
    return found


def request(number, small_tokens, large_tokens, small_q, large_q):
    return Request(
        number, f"p{number}", np.array([small_tokens, large_tokens]), np.array([small_q, large_q])
    )


def test_load_constants(profiles):
    small, large = profiles
    assert (small.max_batch_size, small.decode_ms_per_token) == (20, pytest.approx(21.6))
    assert (large.max_batch_size, large.decode_ms_per_token) == (8, pytest.approx(29.28))


@pytest.mark.parametrize(
    ("load", "tau", "loads_ms", "chosen"),
    [
        # large is the fastest; small is within twice its load, so the more confident small it is.
        ("inflight", 1.0, (324.0, 183.0), "small"),
        # 324 ms is beyond 1.5 times 183 ms.
        ("inflight", 0.5, (324.0, 183.0), "large"),
        # With the program's own 100 or 60 tokens: 400·1.08 and 110·3.66, within 1.5 of each other.
        ("inflight+self", 0.5, (432.0, 402.6), "small"),
    ],
)
def test_load_and_choice(profiles, load, tau, loads_ms, chosen):
    scheduler = Scheduler(profiles, Chimera(tau=tau, delta_s=0.05, load=load))
    # Huge predictions on the other engine put the two earlier programs where they shall be.
    scheduler.admit(request(0, 300.0, 1e9, 1.0, 0.0), 0.0)
    scheduler.admit(request(1, 1e9, 50.0, 0.0, 1.0), 0.0)
    np.testing.assert_allclose(scheduler.load_ms(), [324.0, 183.0])

    decision = scheduler.admit(request(2, 100.0, 60.0, 0.9, 0.5), 0.0)
    np.testing.assert_allclose(decision.load_ms, loads_ms)
    assert profiles[decision.engine].name == chosen

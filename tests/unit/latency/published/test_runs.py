"""The steps of a batch: closed forms without limits, the engine's turns with them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chimera_train.latency.published.runs import Batch, Limits, batch_steps, fit_kv_tokens
from chimera_train.pool.schema import EngineInfo


def closed_form(batch: Batch) -> dict[str, float]:
    """One step for the prompts, then one for each further output token."""
    size, prompt, decodes = batch.size, batch.prompt_tokens, batch.output_tokens - 1
    return {
        "n_steps": 1 + decodes,
        "n_prefill_steps": 1,
        "n_decode_steps": decodes,
        "n_batched_steps": 1 + (decodes if size > 1 else 0),
        "prefill_tokens": size * prompt,
        "decode_tokens": size * decodes,
        "decode_ctx_tokens": size * sum(range(prompt, prompt + decodes)),
        "prefill_attn": size * prompt * (prompt + 1) / 2,
    }


@pytest.mark.parametrize(
    "batch", [Batch(1, 128, 128), Batch(16, 64, 1), Batch(5, 100, 17), Batch(64, 2, 300)]
)
def test_without_limits_a_batch_is_one_prefill_and_decode_steps(batch: Batch) -> None:
    assert batch_steps(batch, Limits()) == closed_form(batch)


def test_requests_that_do_not_fit_together_run_one_after_the_other() -> None:
    one, four = Batch(1, 128, 64), Batch(4, 128, 64)
    alone = batch_steps(one, Limits(kv_tokens=192))
    # The last output token takes no memory, and no second prompt of 128 fits beside the first.
    assert batch_steps(four, Limits(kv_tokens=192)) == {k: 4 * v for k, v in alone.items()}
    assert alone == closed_form(one)


def test_a_cache_that_is_too_small_costs_preemptions() -> None:
    batch = Batch(8, 64, 64)
    free, tight = batch_steps(batch, Limits()), batch_steps(batch, Limits(kv_tokens=8 * 80))
    assert tight["prefill_tokens"] > free["prefill_tokens"], (
        "preempted sequences are computed again"
    )
    assert tight["n_steps"] > free["n_steps"]
    assert batch_steps(batch, Limits(kv_tokens=8 * 128)) == free


def test_the_limits_of_a_known_engine(step_time) -> None:  # type: ignore[no-untyped-def]
    info: EngineInfo = step_time(max_num_seqs=2, max_num_batched_tokens=64).engine
    limits = Limits.of(info)
    assert limits == Limits(1024 * 16, 16, 2, 64, True)
    steps = batch_steps(Batch(4, 64, 3), limits)
    # Two at a time: a prompt a step, in the second beside the first one's decode.
    assert steps["prefill_tokens"] == 4 * 64
    assert steps["decode_tokens"] == 4 * 2
    assert steps["n_prefill_steps"] > 4, (
        "64 tokens a step are a prompt or a part of it and a decode"
    )


def times(batches: list[Batch], limits: Limits) -> list[float]:
    steps = [batch_steps(batch, limits) for batch in batches]
    return [
        13 * s["n_steps"]
        + 0.06 * (s["prefill_tokens"] + s["decode_tokens"])
        + 4e-4 * s["decode_ctx_tokens"]
        for s in steps
    ]


def test_the_size_of_the_cache_is_read_off_the_times() -> None:
    lengths, sizes = (128, 256, 512), (1, 8, 16, 32)
    batches = [Batch(size, n, n) for n, size in itertools.product(lengths, sizes)]
    rng = np.random.default_rng(0)
    noise = rng.lognormal(0, 0.01, len(batches))
    measured = np.array(times(batches, Limits(kv_tokens=10_000))) * noise
    fitted = fit_kv_tokens(batches, measured.tolist())
    assert fitted is not None
    assert 8_500 < fitted < 11_500
    assert fit_kv_tokens(batches, (np.array(times(batches, Limits())) * noise).tolist()) is None
    assert fit_kv_tokens([Batch(1, 64, 64)], [900.0]) is None

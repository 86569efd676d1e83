"""The profiling plan: within the engine's limits, and wide enough."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chimera_train.collect.step_plan import Cell, is_repeat, plan_cells, plan_passes
from chimera_train.errors import ConfigError
from chimera_train.pool.schema import EngineInfo

# 5 x 5 cells in three regimes.
FIRST_PASS = 75


def engine(
    *, max_num_seqs: int = 32, max_model_len: int = 512, num_kv_blocks: int = 2000
) -> EngineInfo:
    return EngineInfo(
        model="m",
        device="d",
        vllm_version="0",
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=512,
        max_model_len=max_model_len,
        block_size=16,
        num_kv_blocks=num_kv_blocks,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        scheduling_policy="fcfs",
        async_scheduling=False,
        tensor_parallel_size=1,
    )


def cells(info: EngineInfo, n: int, max_prompt_tokens: float = 1e9, seed: int = 0) -> list[Cell]:
    return list(islice(plan_cells(info, max_prompt_tokens, np.random.default_rng(seed)), n))


def test_the_first_pass_is_a_grid_of_at_least_four_by_four_with_its_corners() -> None:
    first = cells(engine(), FIRST_PASS)
    for kind in ("decode", "prefill"):
        points = {(cell.n_seqs, cell.prompt_tokens) for cell in first if cell.kind == kind}
        sizes, lengths = ({point[i] for point in points} for i in (0, 1))
        assert len(points) == len(sizes) * len(lengths) >= 16
        assert (min(sizes), max(sizes)) == (1, 32)
        assert (min(lengths), max(lengths)) == (16, 480)


def test_the_regimes_come_in_turn_from_the_start() -> None:
    assert Counter(cell.kind for cell in cells(engine(), 60)) == {
        "decode": 20,
        "prefill": 20,
        "mixed": 20,
    }
    assert {cell.kind for cell in cells(engine(), 3)} == {"decode", "prefill", "mixed"}


def passes(info: EngineInfo, n: int, max_prompt_tokens: float = 1e9) -> list[list[Cell]]:
    return list(islice(plan_passes(info, max_prompt_tokens, np.random.default_rng(0)), n))


def test_every_other_pass_is_the_grid_again_in_another_order() -> None:
    first, _, third, _, fifth = passes(engine(), 5)
    assert [is_repeat(number) for number in range(5)] == [True, False, True, False, True]
    assert Counter(first) == Counter(third) == Counter(fifth)
    assert max(Counter(first).values()) == 1
    assert first != third


def test_the_passes_between_see_sizes_between_the_points() -> None:
    later = [cell for cells in passes(engine(), 8)[1::2] for cell in cells]
    assert len({cell.prompt_tokens for cell in later}) > 50
    assert len({cell.n_seqs for cell in later}) > 15


def test_prompts_of_every_length_arrive_at_batches_of_every_size() -> None:
    mixed = [cell for cell in passes(engine(), 1)[0] if cell.kind == "mixed"]
    for attribute in ("n_seqs", "prompt_tokens"):
        pairs = {(getattr(cell, attribute), cell.arriving_tokens) for cell in mixed}
        assert len(pairs) == 25


def test_each_length_is_seen_with_as_many_sequences_as_the_kv_cache_holds() -> None:
    decode = [cell for cell in passes(engine(num_kv_blocks=101), 1)[0] if cell.kind == "decode"]
    most = dict.fromkeys({cell.prompt_tokens for cell in decode}, 0)
    for cell in decode:
        most[cell.prompt_tokens] = max(most[cell.prompt_tokens], cell.n_seqs)
    assert most == {16: 32, 37: 25, 88: 14, 205: 7, 480: 3}


def test_prompts_longer_than_the_token_budget_are_there_for_any_budget() -> None:
    info = engine(max_model_len=4096)
    chunked = [cell for cell in passes(info, 1, 600)[0] if cell.prompt_tokens > 512]
    assert {cell.kind for cell in chunked} == {"decode", "prefill", "mixed"}
    assert {cell.n_seqs for cell in chunked} == {1}


def test_an_engine_of_one_sequence_has_no_mixed_batch() -> None:
    assert {cell.kind for cell in passes(engine(max_num_seqs=1), 1)[0]} == {"decode", "prefill"}


def test_the_order_depends_on_the_seed_alone() -> None:
    assert cells(engine(), 100) == cells(engine(), 100)
    assert cells(engine(), 100) != cells(engine(), 100, seed=1)


@settings(max_examples=40)
@given(
    max_num_seqs=st.integers(1, 300),
    max_model_len=st.integers(48, 5000),
    num_kv_blocks=st.integers(4, 3000),
    max_prompt_tokens=st.floats(1, 1e6),
)
def test_cells_fit_the_engine(
    max_num_seqs: int, max_model_len: int, num_kv_blocks: int, max_prompt_tokens: float
) -> None:
    info = engine(
        max_num_seqs=max_num_seqs, max_model_len=max_model_len, num_kv_blocks=num_kv_blocks
    )
    for cell in cells(info, 100, max_prompt_tokens):
        arriving = int(cell.kind == "mixed")
        assert 1 <= cell.n_seqs <= max_num_seqs - arriving
        assert 16 <= cell.prompt_tokens <= max_model_len - cell.output_tokens
        assert (cell.arriving_tokens > 0) == (cell.kind == "mixed")
        assert cell.arriving_tokens < max_model_len
        blocks = cell.n_seqs * -(-(cell.prompt_tokens + cell.output_tokens) // 16)
        assert blocks + arriving * -(-(cell.arriving_tokens + 1) // 16) <= num_kv_blocks - 1
        assert cell.n_seqs == 1 or cell.n_seqs * cell.prompt_tokens <= max_prompt_tokens


@pytest.mark.parametrize("limits", [{"max_model_len": 47}, {"num_kv_blocks": 2}])
def test_an_engine_that_is_too_small_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="too small"):
        cells(engine(**limits), 1)

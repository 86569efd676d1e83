"""Steps told from arrival times, against an engine whose steps are known."""

from itertools import accumulate

import pytest

from chimera_train.collect.token_times import decode_row, floor_s, mixed_row, prefill_row, ttft_s

STEP_S, PREFILL_S, FLOOR_S = 0.010, 0.035, 0.004


def arrivals(steps_s: list[float], start: int, n: int) -> list[float]:
    """Times of the n tokens that steps ``start``, ``start`` + 1, … of an engine yield."""
    return list(accumulate(steps_s))[start : start + n]


def test_a_batch_that_starts_in_one_step() -> None:
    times = [arrivals([STEP_S] * 20, 0, 12)] * 4
    row = decode_row(times, 100)
    assert row is not None
    assert row["step_ms"] == pytest.approx(10)
    assert (row["prefill_tokens"], row["decode_tokens"], row["n_seqs"]) == (0, 4, 4)
    # 11 steps at contexts of 100, 101, …, 110 each.
    assert row["decode_ctx_tokens"] == 4 * 105


def test_a_batch_whose_prompts_take_several_steps_is_measured_when_all_decode() -> None:
    steps_s = [0.05, 0.05] + [STEP_S] * 20
    times = [arrivals(steps_s, start, 12) for start in (0, 1, 2)]
    row = decode_row(times, 100)
    assert row is not None
    assert row["step_ms"] == pytest.approx(10)
    # From the third sequence's first token to the first one's last: 9 steps, the fifth in the
    # middle, before which the sequences have 7, 6 and 5 tokens.
    assert row["decode_ctx_tokens"] == 3 * 100 + 6 + 5 + 4
    assert decode_row([times[0], arrivals(steps_s, 8, 12)], 100) is None


@pytest.mark.parametrize("jitter", [0.0, 0.0011, -0.0011])
def test_a_prompt_that_arrives_at_a_batch(jitter: float) -> None:
    steps_s = [STEP_S] * 30
    steps_s[9] = steps_s[17] = PREFILL_S
    times = [arrivals(steps_s, 0, 28)] * 3
    firsts = [times[0][9] + jitter, times[0][17] + jitter]
    row = mixed_row(times, 50, firsts, 64)
    assert row is not None
    assert row["step_ms"] == pytest.approx(35)
    assert (row["prefill_tokens"], row["decode_tokens"]) == (64, 3)
    assert (row["n_prefill"], row["n_seqs"], row["prefill_attn"]) == (1, 4, 64 * 65 / 2)
    # The means of both, which are steps 9 and 17: 13 tokens before, 12 of them computed.
    assert row["decode_ctx_tokens"] == 3 * (50 + 12)


def test_a_first_token_that_is_taken_for_the_next_one() -> None:
    steps_s = [STEP_S] * 30
    steps_s[9] = PREFILL_S
    times = [arrivals(steps_s, 0, 28)]
    row = mixed_row(times, 50, [times[0][9] + 0.006], 64)
    assert row is not None
    assert row["step_ms"] == pytest.approx(35)


def test_arrivals_outside_the_batch_show_nothing() -> None:
    times = [arrivals([STEP_S] * 30, 0, 28)]
    assert mixed_row(times, 50, [], 64) is None
    assert mixed_row(times, 50, [times[0][0], times[0][-1] + 0.1], 64) is None


def test_the_floor_is_what_a_single_token_takes_beyond_a_step() -> None:
    times = [FLOOR_S + time for time in arrivals([STEP_S] * 8, 0, 8)]
    assert floor_s(0.0, times) == pytest.approx(FLOOR_S)


def test_a_prompt_alone() -> None:
    row = prefill_row(FLOOR_S + PREFILL_S, FLOOR_S, 64, budget=256)
    assert row is not None
    assert row["step_ms"] == pytest.approx(35)
    assert (row["prefill_tokens"], row["prefill_attn"], row["decode_tokens"]) == (64, 2080, 0)
    assert prefill_row(0.003, FLOOR_S, 64, budget=256) is None


def test_a_prompt_of_several_chunks_is_their_mean() -> None:
    row = prefill_row(FLOOR_S + 3 * PREFILL_S, FLOOR_S, 192, budget=64)
    assert row is not None
    assert row["step_ms"] == pytest.approx(35)
    assert (row["prefill_tokens"], row["n_prefill"], row["n_seqs"]) == (64, 1, 1)
    assert row["prefill_attn"] == 192 * 193 / 2 / 3
    assert row["max_prefill_ctx"] == 192


def test_tokens_that_come_together_came_late() -> None:
    """A server that stops for three steps hands their tokens on at once, when it goes on."""
    on_time = arrivals([STEP_S] * 20, 0, 12)
    late_first = [max(time, on_time[3] + 0.004) for time in on_time]
    late_last = [*on_time[:9], *[on_time[11] + 0.004] * 3]
    for times in (late_first, late_last):
        row = decode_row([times], 100)
        assert row is not None
        assert row["step_ms"] == pytest.approx(10, rel=0.1)
    assert decode_row([[1.0] * 12], 100) is None
    assert ttft_s(0.0, on_time) == pytest.approx(STEP_S)
    assert ttft_s(0.0, late_first) is None
    assert floor_s(0.0, late_first) is None
    assert mixed_row([[1.0] * 12], 50, [1.0], 64) is None

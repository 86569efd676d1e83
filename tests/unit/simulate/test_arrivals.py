"""Arrival processes: their rate, their burstiness against closed forms, and what a seed decides."""

import gzip
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chimera_train.errors import ConfigError, DataError
from chimera_train.simulate.arrivals import deterministic, mmpp, poisson, recorded, rescaled
from chimera_train.simulate.recorded import read_arrival_times
from chimera_train.traces.store import write_table


class Questions:
    """All that the processes look at."""

    questions = [f"q{i}" for i in range(7)]


MMPP = {"rate_ratio": 8.0, "high_fraction": 0.2, "correlation_time_s": 2.0}
PROCESSES = [poisson, deterministic, partial(mmpp, **MMPP)]


@pytest.mark.parametrize("process", PROCESSES)
@given(rate=st.floats(0.01, 1000), programs=st.integers(1, 200), seed=st.integers(0, 2**32 - 1))
def test_a_seed_decides_everything_and_its_programs_not_the_rate(process, rate, programs, seed):
    first, again, slower = (
        process(Questions, rate_per_s=r, programs=programs, seed=seed)
        for r in (rate, rate, rate / 3)
    )
    for name in ("times_ms", "questions", "luck"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    assert first.times_ms.shape == first.questions.shape == first.luck.shape == (programs,)
    assert first.times_ms[0] > 0
    assert (np.diff(first.times_ms) >= 0).all()
    assert set(first.questions) <= set(range(7))
    assert ((first.luck >= 0) & (first.luck < 1)).all()
    np.testing.assert_array_equal(first.questions, slower.questions)
    np.testing.assert_array_equal(first.luck, slower.luck)
    assert (slower.times_ms > first.times_ms).all()


@pytest.mark.parametrize("process", PROCESSES)
def test_the_mean_rate_is_the_one_asked_for(process):
    ends_s = [
        process(Questions, rate_per_s=5.0, programs=20_000, seed=seed).times_ms[-1] / 1000
        for seed in range(10)
    ]
    # Counts of the bursty process vary most: with the index of dispersion below, 20,000 programs
    # take 4000 s give or take 1.5 %, ten times as many 0.5 %.
    assert np.mean(ends_s) == pytest.approx(4000, rel=0.02)


def test_equal_intervals_are_equal():
    times_ms = deterministic(Questions, rate_per_s=4.0, programs=5, seed=0).times_ms
    np.testing.assert_allclose(times_ms, [250, 500, 750, 1000, 1250])


def dispersion(times_ms, window_s):
    """Variance over mean of the number of arrivals in windows."""
    edges_ms = np.arange(0, times_ms[-1], 1000 * window_s)
    counts = np.histogram(times_ms, edges_ms)[0]
    return counts.var() / counts.mean()


@pytest.mark.parametrize("window_s", [0.5, 2.0, 20.0])
@pytest.mark.parametrize(("ratio", "fraction", "time_s"), [(8, 0.2, 2), (3, 0.5, 1), (1, 0.2, 2)])
def test_bursts_have_the_dispersion_of_the_closed_form(window_s, ratio, fraction, time_s):
    """The rate is λ_L or λ_H, its autocovariance σ²·exp(−|t|/T_c), σ² = f(1−f)(λ_H−λ_L)²; hence
    Var N(t) = λt + 2σ²T_c·(t − T_c(1 − exp(−t/T_c)))."""
    rate = 5.0
    low = rate / (1 - fraction + fraction * ratio)
    variance = fraction * (1 - fraction) * (low * (ratio - 1)) ** 2
    decay = time_s / window_s * (1 - np.exp(-window_s / time_s))
    expected = 1 + 2 * variance * time_s / rate * (1 - decay)
    options = {"rate_ratio": ratio, "high_fraction": fraction, "correlation_time_s": time_s}
    measured = [
        dispersion(
            mmpp(Questions, rate_per_s=rate, programs=60_000, seed=seed, **options).times_ms,
            window_s,
        )
        for seed in range(5)
    ]
    assert np.mean(measured) == pytest.approx(expected, rel=0.08)


def test_poisson_has_dispersion_one():
    times_ms = poisson(Questions, rate_per_s=5.0, programs=60_000, seed=0).times_ms
    assert dispersion(times_ms, 2.0) == pytest.approx(1, rel=0.05)


@given(
    gaps=st.lists(st.floats(0, 1e6), min_size=1, max_size=50),
    start=st.floats(-1e6, 1e6),
    rate=st.floats(0.01, 1000),
)
@example(gaps=[2.225073858507203e-309], start=0.0, rate=1.0)  # a ratio of lengths would overflow
def test_rescaling_keeps_order_and_proportions_and_gives_the_rate(gaps, start, rate):
    times_ms = start + np.concatenate([[0.0], np.cumsum(gaps)])
    length_ms = times_ms[-1] - times_ms[0]
    if length_ms == 0:
        with pytest.raises(DataError, match="at a single moment"):
            rescaled(times_ms, rate)
        return
    scaled = rescaled(times_ms, rate)
    assert scaled[0] == 0
    assert (np.diff(scaled) >= 0).all()
    assert len(gaps) / scaled[-1] * 1000 == pytest.approx(rate)
    np.testing.assert_allclose(
        scaled / scaled[-1], (times_ms - times_ms[0]) / length_ms, atol=1e-12
    )


def test_recorded_arrivals_can_name_their_questions():
    arrivals = recorded(Questions, times_ms=[1, 5], questions=["q3", "q0"], seed=0)
    assert arrivals.questions.tolist() == [3, 0]
    with pytest.raises(DataError, match="Question 'q9' is not among"):
        recorded(Questions, times_ms=[1], questions=["q9"], seed=0)


def test_each_format_is_recognised_by_its_header(tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:04.0319600,3180,8\n"  # out of order, as several servers log
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:05,1,1\n"
    )
    np.testing.assert_allclose(read_arrival_times(azure), [0, 52, 1020.04])

    mooncake = tmp_path / "mooncake.jsonl.gz"
    rows = [{"timestamp": 1_700_000_000_000 + t, "hash_ids": [t]} for t in (0, 3000, 27)]
    mooncake.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_arrival_times(mooncake).tolist() == [0, 27, 3000]

    replayed = tmp_path / "requests.parquet"
    pd.DataFrame({"arrival_ms": [5.5, 7.0], "prompt_tokens": [1, 1]}).to_parquet(replayed)
    assert read_arrival_times(replayed).tolist() == [0, 1.5]


def test_collected_programs_arrive_when_they_started(tmp_path):
    program = {
        "task": "t", "question_id": "q", "workflow": "w", "model": "m", "sample": 0,
        "n_stages": 1, "total_output_tokens": 1,
    }  # fmt: skip
    rows = [
        {**program, "program_id": str(i), "started_at": pd.Timestamp(started, tz="UTC")}
        for i, started in enumerate(("2026-01-01 00:00:01.250", "2026-01-01 00:00:00"))
    ]
    assert read_arrival_times(write_table(tmp_path, "programs", rows)).tolist() == [0, 1250]
    write_table(tmp_path, "programs", [*rows, {**program, "program_id": "2"}])
    with pytest.raises(DataError, match=r"programs\.parquet: 1 value\(s\) of 'started_at' are not"):
        read_arrival_times(tmp_path / "programs.parquet")


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("t.csv", "when\n1\n", DataError, "no column of arrival times, which are arrival_ms"),
        ("t.csv", "TIMESTAMP\n", DataError, "no rows"),
        ("t.csv", "TIMESTAMP\nsoon\n2023-01-01\n", DataError, "1 value.* of 'TIMESTAMP'"),
        ("t.csv", "arrival_ms\n1\ninf\n", DataError, "1 value.* of 'arrival_ms' are not times"),
        ("t.jsonl", '{"timestamp": 1}\n{"timestamp": ', DataError, "not a readable table"),
        ("t.jsonl.gz", "plain", DataError, "not a readable table"),
        ("t.parquet", "plain", DataError, "not a readable table"),
        ("t.xlsx", "", ConfigError, r"not a \.csv, \.jsonl or \.parquet file"),
        ("missing.csv", None, DataError, "does not exist"),
    ],
)
def test_a_file_without_arrival_times_is_refused(tmp_path, name, text, error, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        read_arrival_times(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "programs", "rate_per_s"),
    [("azure_code.csv", 8819, 2.566), ("mooncake_conversation_3000.jsonl.gz", 3000, 3.039)],
)
def test_public_traces(public_data, name, programs, rate_per_s):
    times_ms = read_arrival_times(public_data("traces", name))
    assert times_ms.size == programs
    assert 1000 * (programs - 1) / times_ms[-1] == pytest.approx(rate_per_s, rel=1e-3)

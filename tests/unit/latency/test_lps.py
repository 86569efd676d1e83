"""Fitting mu and k: queues of which both are known, simulated here event by event."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import DataError
from chimera_train.latency.endpoint import calibrate_endpoint
from chimera_train.latency.loads import read_loads
from chimera_train.predict.lps import ProcessorSharing

FLOOR_MS = 20.0
Queue = Callable[[float, int, np.random.Generator], tuple[np.ndarray, np.ndarray, np.ndarray]]


def shared(mu: float, k: int) -> Queue:
    """Capacity mu, shared by at most k requests with exponential work; the others in order."""

    def simulate(rate: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        arrivals = np.cumsum(rng.exponential(1 / rate, n))
        work = rng.exponential(1 / mu, n)
        start, end = np.empty(n), np.empty(n)
        served: list[tuple[float, int]] = []  # by the work each had been given when it ends
        waiting: deque[int] = deque()
        given = now = 0.0  # given: to a request that was served from the beginning
        arrived = 0

        def serve(i: int) -> None:
            start[i] = now
            heapq.heappush(served, (given + work[i], i))

        while arrived < n or served:
            next_end = now + (served[0][0] - given) * len(served) if served else np.inf
            if arrived < n and arrivals[arrived] <= next_end:
                if served:
                    given += (arrivals[arrived] - now) / len(served)
                now = arrivals[arrived]
                if len(served) < k:
                    serve(arrived)
                else:
                    waiting.append(arrived)
                arrived += 1
            else:
                now = next_end
                given, i = heapq.heappop(served)
                end[i] = now
                if waiting:
                    serve(waiting.popleft())
        return arrivals, start - arrivals, end - arrivals

    return simulate


def seats(mu: float, c: int) -> Queue:
    """Capacity mu in c seats that do not help each other (M/M/c)."""

    def simulate(rate: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        arrivals = np.cumsum(rng.exponential(1 / rate, n))
        work = rng.exponential(c / mu, n)
        free = [0.0] * c
        start = np.empty(n)
        for i in range(n):
            start[i] = max(heapq.heappop(free), arrivals[i])
            heapq.heappush(free, start[i] + work[i])
        return arrivals, start - arrivals, start + work - arrivals

    return simulate


def observe(queue: Queue, rates: Sequence[float], n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frames = []
    for rate in rates:
        arrivals, waits, times = queue(rate, n, rng)
        prompt = rng.integers(10, 200, n)
        own_ms = FLOOR_MS + 0.1 * prompt
        frames.append(
            pd.DataFrame(
                {
                    "rate_per_s": rate,
                    "arrival_ms": 1000 * arrivals,
                    "prompt_tokens": prompt,
                    "ttft_ms": 1000 * waits + own_ms,
                    "e2e_ms": 1000 * times + own_ms,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def fitted(tmp_path: Path, frame: pd.DataFrame, window_s: float | None = None) -> dict:
    path = tmp_path / "requests.parquet"
    frame.to_parquet(path)
    return dict(calibrate_endpoint(read_loads(path, window_s=window_s), seed=0))


@pytest.mark.parametrize(
    ("k", "rates"),
    [
        (1, [1.0, 3, 5, 7, 9]),
        (8, [2.0, 4, 6, 7, 8, 9]),
        (25, [2.0, 6, 8, 9, 9.5, 12]),
        (25, [2.0, 5, 7, 12]),  # only saturation shows a wait
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_mu_and_k_of_a_shared_queue_are_found(
    tmp_path: Path, k: int, rates: list[float], seed: int
) -> None:
    document = fitted(tmp_path, observe(shared(10.0, k), rates, 5000, seed))
    assert document["k"] == k
    assert document["mu_per_s"] == pytest.approx(10.0, rel=0.05)
    low, high = document["ci"]["mu_per_s"]
    assert low < document["mu_per_s"] < high
    assert document["knee"]["requests"] == k
    assert document["prefill_ms"] == pytest.approx(FLOOR_MS, abs=0.5 if k > 1 else 10)
    assert document["prefill_ms_per_token"] == pytest.approx(0.1, abs=0.01 if k > 1 else 0.2)
    assert [load["saturated"] for load in document["loads"]] == [rate > 10 for rate in rates]


def test_a_rate_that_was_not_seen_is_predicted(tmp_path: Path) -> None:
    document = fitted(tmp_path, observe(shared(10.0, 4), [1.0, 3, 5, 7, 9], 10000))
    model = ProcessorSharing(
        **{
            name: document[name] for name in ("mu_per_s", "k", "prefill_ms", "prefill_ms_per_token")
        },
        observed_per_s=tuple(document["observed_per_s"]),
    )
    assert model.wait_ms(8.0) == pytest.approx(1000 * 0.8**4 / 2, rel=0.2)
    assert model.observed_per_s == pytest.approx((1, 9), rel=0.05)


def test_seats_of_their_own_pace_are_described_by_a_smaller_exponent(tmp_path: Path) -> None:
    document = fitted(tmp_path, observe(seats(10.0, 25), [2.0, 6, 7, 8, 8.5, 9], 8000))
    assert document["knee"]["requests"] == 25
    assert 4 <= document["k"] <= 14
    assert document["mu_per_s"] == pytest.approx(10.0, rel=0.05)
    # With k = 25 the formula has 2 ms at 8/s, where Erlang C has 105 ms.
    at_8 = next(load for load in document["loads"] if abs(load["rate_per_s"] - 8) < 0.3)
    assert at_8["predicted_ttft_ms"] == pytest.approx(at_8["ttft_ms"], rel=0.4)


def test_concurrency_is_littles_law(tmp_path: Path) -> None:
    document = fitted(tmp_path, observe(shared(10.0, 25), [2.0, 5, 7, 12], 5000))
    # M/M/1 with ρ = 0.5 holds one request; its own prefill of 30 ms adds 0.15.
    assert document["loads"][1]["concurrency"] == pytest.approx(1.15, rel=0.1)
    assert document["loads"][3]["concurrency"] is None
    assert document["loads"][3]["throughput_per_s"] == pytest.approx(10, rel=0.05)


def test_windows_of_one_log_do_as_well_as_labels(tmp_path: Path) -> None:
    frame = observe(shared(10.0, 4), [1.0, 3, 5, 7, 8, 8.5], 6000)
    begin = 0.0
    for _, load in frame.groupby("rate_per_s"):
        frame.loc[load.index, "arrival_ms"] += begin
        begin = float((frame.loc[load.index, "arrival_ms"] + frame.loc[load.index, "e2e_ms"]).max())
    document = fitted(tmp_path, frame.drop(columns="rate_per_s"), window_s=200)
    assert document["mu_per_s"] == pytest.approx(10.0, rel=0.1)
    assert document["k"] in (3, 4, 5)


def test_loads_at_the_floor_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"all loads are at the latency floor.*highest rate seen is"
    ):
        fitted(tmp_path, observe(shared(10.0, 25), [1.0, 2, 4, 5], 1000))


def test_saturation_alone_has_no_floor(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"even the lowest rate, .* saturates the endpoint"):
        fitted(tmp_path, observe(shared(10.0, 4), [14.0, 16, 20], 1000))


def test_a_capacity_below_a_rate_that_was_kept_up_with_is_refused(tmp_path: Path) -> None:
    frame = observe(shared(10.0, 1), [1.0, 3, 5, 7], 1000)
    idle = observe(shared(1000.0, 1), [9.9], 1000)
    frame.loc[frame["rate_per_s"] == 7, ["ttft_ms", "e2e_ms"]] += 1e5
    with pytest.raises(DataError, match=r"put the capacity at or below .*/s, a rate"):
        fitted(tmp_path, pd.concat([frame, idle]))


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    frame = observe(shared(10.0, 4), [1.0, 5, 8], 1000)
    assert fitted(tmp_path, frame) == fitted(tmp_path, frame)

"""The average case on queues whose μ and k are known, and on simulated engines, which are none."""

import heapq
import json
from collections import deque
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import fit as command
from chimera_train.errors import DataError
from chimera_train.latency.average_case import fit_average_case, observed_loads
from chimera_train.predict.average_case import ObservedLoad, load_average_case, mean_ttft_ms
from chimera_train.simulate.replay import replay

SOURCE = [Path("requests.jsonl")]
LOADS = np.array([0.2, 0.4, 0.55, 0.7, 0.8, 0.87, 0.93])


def processor_sharing(
    rate: float, mu: float, k: int, n: int, rng: np.random.Generator
) -> pd.DataFrame:
    """Requests at a capacity of ``mu`` that at most ``k`` share, the others in order of arrival."""
    arrivals, work = np.cumsum(rng.exponential(1 / rate, n)), rng.exponential(1 / mu, n)
    start_s = np.empty(n)
    served: list[tuple[float, int]] = []  # by the work that each has been given when it ends
    waiting: deque[int] = deque()
    given = now_s = 0.0
    arrived = 0
    while arrived < n or served:
        end_s = now_s + (served[0][0] - given) * len(served) if served else np.inf
        if arrived < n and arrivals[arrived] <= end_s:
            given += (arrivals[arrived] - now_s) / max(len(served), 1)
            now_s = arrivals[arrived]
            waiting.append(arrived)
            arrived += 1
        else:
            now_s, given = end_s, heapq.heappop(served)[0]
        while waiting and len(served) < k:
            start_s[waiting[0]] = now_s
            heapq.heappush(served, (given + work[waiting[0]], waiting.popleft()))
    ttft_ms = 1000 * (start_s - arrivals) + 20
    return pd.DataFrame({"arrival_ms": 1000 * arrivals, "ttft_ms": ttft_ms})


@pytest.mark.parametrize("k", [1, 4, 10])
def test_both_parameters_of_the_queue_it_assumes_are_found(k: int) -> None:
    rng = np.random.default_rng(k)
    recordings = [processor_sharing(10 * load, 10.0, k, 20_000, rng) for load in LOADS]
    fitted = fit_average_case(observed_loads(recordings, None), SOURCE)
    assert fitted.mu_per_s == pytest.approx(10, rel=0.05)
    assert abs(fitted.k - k) <= max(1, 0.2 * k)
    assert fitted.floor_ms == pytest.approx(20, rel=0.15)
    assert fitted.mape["used"] < fitted.mape["constant"]
    assert fitted.mape["used"] < 20


@pytest.mark.parametrize(
    ("terms", "limits"),
    [
        ({"const": 4.0, "prefill_tokens": 0.017, "decode_tokens": 0.1}, {"max_num_seqs": 16}),
        (
            {"const": 7.3, "prefill_tokens": 2.1e-2, "decode_tokens": 2.6e-2},
            {"max_num_seqs": 256, "max_num_batched_tokens": 8192},
        ),
    ],
    ids=["small", "large"],
)
def test_a_batching_engine_is_predicted_better_than_by_the_baselines(
    step_time, terms, limits
) -> None:
    """Its TTFT rises before anything waits, which the published formula leaves out."""
    model = step_time(terms=terms, **{"num_kv_blocks": 100_000, **limits})
    rng = np.random.default_rng(1)

    def observe(rate_per_s: float, n: int) -> pd.DataFrame:
        frame = pd.DataFrame(
            {
                "arrival_ms": np.cumsum(rng.exponential(1000 / rate_per_s, n)),
                "prompt_tokens": rng.poisson(200, n) + 1,
                "output_tokens": rng.geometric(0.01, n),
            }
        )
        return replay(model, frame).predicted

    flood = observe(1e5, 1000)
    capacity = 1000 / (flood["arrival_ms"] + flood["e2e_ms"]).max() * 1000
    recordings = [observe(capacity * load, 2000) for load in LOADS]
    fitted = fit_average_case(
        observed_loads([*recordings, observe(2 * capacity, 2000)], None), SOURCE
    )
    assert fitted.mape["used"] < min(20, fitted.mape["constant"], fitted.mape["mm1"])
    assert [load.saturated for load in fitted.loads] == [False] * len(LOADS) + [True]
    assert fitted.is_saturated(fitted.loads[-1].rate_per_s)


def test_a_latency_that_does_not_depend_on_the_rate_is_not_claimed_to_be_predicted() -> None:
    rng = np.random.default_rng(0)
    loads = [
        ObservedLoad(
            rate_per_s=rate, requests=100, ttft_ms=50 * rng.lognormal(0, 0.1), saturated=False
        )
        for rate in (1, 2, 3, 4, 5, 6)
    ]
    fitted = fit_average_case(loads, SOURCE)
    assert fitted.mape["used"] > fitted.mape["constant"]


def recording(rates: list[float], seconds: float) -> pd.DataFrame:
    """One recording whose rate changes every ``seconds``; regular arrivals, exact TTFTs."""
    arrival_s = np.concatenate(
        [i * seconds + np.arange(0, seconds, 1 / rate) for i, rate in enumerate(rates)]
    )
    ttft_ms = mean_ttft_ms(np.repeat(rates, [seconds * rate for rate in rates]), 12.0, 3, 30, 1)
    return pd.DataFrame({"arrival_ms": 1000 * arrival_s, "ttft_ms": ttft_ms})


def test_windows_of_one_recording_are_loads() -> None:
    rates = [2.0, 8.0, 4.0, 10.0, 6.0, 5.0, 1.0]
    loads = observed_loads([recording(rates, 100.0)], 100.0)
    assert [load.rate_per_s for load in loads] == pytest.approx(sorted(rates[:-1]))
    assert [load.requests for load in loads] == [200, 400, 500, 600, 800, 1000]
    fitted = fit_average_case(loads, SOURCE)
    assert (fitted.mu_per_s, fitted.k) == (pytest.approx(12, rel=1e-3), 3)
    assert (fitted.floor_ms, fitted.floor_ms_s) == (
        pytest.approx(30, rel=0.01),
        pytest.approx(1, rel=0.05),
    )


def test_many_windows_are_joined_by_rate() -> None:
    loads = observed_loads([recording([2.0, 8.0, 4.0] * 10, 100.0)], 100.0)
    assert len(loads) == 10
    assert sum(load.requests for load in loads) == 10 * 1400 - 400


def test_a_load_under_which_requests_pile_up_is_saturated() -> None:
    arrival_ms = np.arange(0, 10_000, 10.0)
    frame = pd.DataFrame({"arrival_ms": arrival_ms, "ttft_ms": 20 + arrival_ms / 4})
    (load,) = observed_loads([frame], None)
    assert load.saturated
    (load,) = observed_loads([frame.assign(ttft_ms=20.0)], None)
    assert not load.saturated


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    command.register(app)
    return app


def write(path: Path, frame: pd.DataFrame, **columns: object) -> str:
    frame.assign(prompt_tokens=10, output_tokens=10, **columns).to_json(
        path, orient="records", lines=True
    )
    return str(path)


def test_the_command_writes_a_file_and_says_what_it_beats(app: typer.Typer, tmp_path: Path) -> None:
    requests = write(tmp_path / "requests.jsonl", recording([2, 8, 4, 10, 6, 5, 1], 100.0))
    out = tmp_path / "endpoint.json"
    arguments = ["fit", "average-case", "--requests", requests, "--out", str(out)]
    text = CliRunner().invoke(app, [*arguments, "--window-s", "100"], catch_exceptions=False).stdout
    assert "mu 12 requests/s, k 3" in text
    assert "better than a constant and than M/M/1" in text
    assert "none saturated it, so mu may be far too high" in text
    assert load_average_case(out).fitted_on["requests"] == 3500
    result = CliRunner().invoke(app, [*arguments, "--window-s", "100", "--json"])
    assert json.loads(result.stdout) == {**json.loads(out.read_text()), "out": str(out)}


def test_too_few_rates_or_no_ttft_write_nothing(app: typer.Typer, tmp_path: Path) -> None:
    frame = recording([2, 8, 4, 10, 6, 5, 1], 100.0)
    few = write(tmp_path / "few.jsonl", frame)
    none = write(tmp_path / "none.jsonl", frame.drop(columns="ttft_ms"), e2e_ms=1.0)
    zero = write(tmp_path / "zero.jsonl", frame.assign(ttft_ms=0.0))
    at_once = write(
        tmp_path / "at-once.jsonl", frame.assign(arrival_ms=0.0, request_id=range(3600))
    )
    out = tmp_path / "endpoint.json"
    for requests, words in (
        (at_once, "0 arrival rates of at least 30"),
        (zero, "a ttft_ms or e2e_ms of 0"),
        (few, "1 arrival rates of at least 30"),
        (none, "lacks the column"),
    ):
        arguments = ["fit", "average-case", "--requests", requests, "--out", str(out)]
        error = CliRunner().invoke(app, arguments).exception
        assert isinstance(error, DataError)
        assert words in str(error)
    assert not out.exists()

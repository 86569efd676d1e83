"""The command and its input: one sentence for what is wrong, and nothing written then."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import calibrate_endpoint as command
from chimera_train.errors import ChimeraError, ConfigError, DataError
from chimera_train.predict.lps import ProcessorSharing

FORMATS = ("r.parquet", "r.csv", "r.csv.gz", "r.jsonl", "r.jsonl.gz")


def run(*arguments: object) -> str:
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def requests(rates: tuple[float, ...] = (1.0, 4.0, 7.0, 9.0), n: int = 400) -> pd.DataFrame:
    """One request at a time, served in order at 10/s: M/M/1."""
    rng = np.random.default_rng(0)
    frames = []
    for rate in rates:
        arrivals = np.cumsum(rng.exponential(1 / rate, n))
        work = rng.exponential(0.1, n)
        end = 0.0
        start = np.empty(n)
        for i in range(n):
            start[i] = max(end, arrivals[i])
            end = start[i] + work[i]
        wait_ms = 1000 * (start - arrivals)
        frames.append(
            pd.DataFrame(
                {
                    "request_id": [f"{rate}-{i}" for i in range(n)],
                    "rate_per_s": rate,
                    "arrival_ms": 1000 * arrivals,
                    "prompt_tokens": 100,
                    "output_tokens": 10,
                    "ttft_ms": wait_ms + 20,
                    "e2e_ms": wait_ms + 20 + 1000 * work,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def write(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif ".jsonl" in path.name:
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_model(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out" / "endpoint.json"
    stdout = run("--requests", write(tmp_path / name, requests()), "--out", out, "--json")
    document = json.loads(stdout)
    assert document.pop("out") == str(out)
    assert document == json.loads(out.read_text())
    model = ProcessorSharing.load(out)
    assert model.k == document["k"] == 1
    assert model.mu_per_s == document["mu_per_s"] == pytest.approx(10.0, rel=0.1)
    assert document["fitted_on"]["requests"] == 1600
    errors = [load["fitted_error_percent"] for load in document["loads"]]
    assert errors[0] is None  # it is the reference, and fits by construction
    assert document["mape"]["fitted"] == pytest.approx(np.mean(np.abs(errors[1:])))
    reference = tmp_path / "reference.json"
    run("--requests", write(tmp_path / "x.parquet", requests()), "--out", reference)
    assert ProcessorSharing.load(reference).mu_per_s == pytest.approx(model.mu_per_s)


def test_people_see_mu_k_and_where_they_hold(tmp_path: Path) -> None:
    out, plot = tmp_path / "e.json", tmp_path / "e.png"
    source = write(tmp_path / "r.csv", requests((1.0, 4.0, 7.0, 9.0, 15.0), 1000))
    text = run("--requests", source, "--out", out, "--plot", plot)
    model = ProcessorSharing.load(out)
    assert f"mu {model.mu_per_s:.4g} requests/s (95 %: " in text
    assert ", k 1 (the mean waits alone: 1 to " in text
    low, high = model.observed_per_s
    assert (
        f"holds from {low:.4g} to {high:.4g}/s, extrapolates to {model.mu_per_s:.4g}/s,"
        " saturated beyond" in text
    )
    rows = [line.split() for line in text.splitlines()[1:6]]
    assert [row[2] == "saturated" for row in rows] == [False, False, False, False, True]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("ttft_ms", math.nan, "in 2 ttft_ms is empty, infinite or not a number"),
        ("e2e_ms", "slow", "in 2 e2e_ms is empty"),
        ("arrival_ms", math.inf, "in 2 arrival_ms is empty"),
        ("arrival_ms", -1.0, "in 2 arrival_ms is negative"),
        ("prompt_tokens", -1, "in 2 prompt_tokens is negative"),
        ("ttft_ms", 0.0, "in 2 ttft_ms is not above 0"),
        ("rate_per_s", -2.0, "in 2 rate_per_s is not above 0"),
        ("e2e_ms", 1.0, "in 2 e2e_ms is below ttft_ms"),
    ],
)
def test_bad_values_are_counted_and_nothing_is_written(
    tmp_path: Path, column: str, value: Any, message: str
) -> None:
    frame = requests().astype({column: object})
    frame.loc[:1, column] = value
    refused(tmp_path, write(tmp_path / "r.csv", frame), DataError, message)


def test_tables_that_are_not_of_requests_are_refused(tmp_path: Path) -> None:
    frame = requests()
    renamed = frame.rename(columns={"ttft_ms": "ttft"})
    for source, error, message in (
        (tmp_path / "none.csv", DataError, "none.csv does not exist"),
        (tmp_path / "r.txt", ConfigError, "r.txt is not a table of requests"),
        (write(tmp_path / "a.csv", frame[:0]), DataError, "a.csv has no requests"),
        (write(tmp_path / "b.csv", renamed), DataError, r"lacks the column\(s\) ttft_ms; it has"),
        (
            write(tmp_path / "c.csv", frame.drop(columns="rate_per_s")),
            DataError,
            r"lacks the column\(s\) rate_per_s \(or cut the log into windows with --window-s\)",
        ),
    ):
        refused(tmp_path, source, error, message)
    for name in FORMATS:
        broken = tmp_path / name
        broken.write_bytes(b"" if name == "r.csv" else b"{\x00broken")
        refused(tmp_path, broken, DataError, "cannot be read as|lacks the column")


def test_a_window_longer_than_the_log_shows_no_load(tmp_path: Path) -> None:
    source, out = write(tmp_path / "r.csv", requests()), tmp_path / "e.json"
    for window in ("1e9", "inf"):
        with pytest.raises(DataError, match="shows 0 loads"):
            run("--requests", source, "--out", out, "--window-s", window)
    assert not out.exists()


def test_too_few_loads_or_requests_are_refused(tmp_path: Path) -> None:
    for frame, message in (
        (requests((5.0,)), "shows 1 loads, at least 3 are needed"),
        (requests((1.0, 9.0)), "shows 2 loads, at least 3 are needed"),
        (requests(n=50), r"has 50 requests at .*/s, at least 100 are needed at each rate"),
    ):
        refused(tmp_path, write(tmp_path / "r.parquet", frame), DataError, message)


def test_a_label_that_is_not_the_rate_is_refused(tmp_path: Path) -> None:
    frame = requests()
    frame.loc[frame["rate_per_s"] == 9.0, "rate_per_s"] = 18.0
    source = write(tmp_path / "r.parquet", frame)
    refused(tmp_path, source, DataError, "requests at rate_per_s 18 arrived at")
    frame["arrival_ms"] = 0.0
    source = write(tmp_path / "r.parquet", frame)
    refused(tmp_path, source, DataError, "arrived at the same time")


def refused(tmp_path: Path, source: Path, error: type[ChimeraError], message: str) -> None:
    out, plot = tmp_path / "e.json", tmp_path / "e.png"
    with pytest.raises(error, match=message) as raised:
        run("--requests", source, "--out", out, "--plot", plot)
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)
    assert not out.exists()
    assert not plot.exists()

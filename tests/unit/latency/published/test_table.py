"""Latency tables: units, several engines, rows that contradict themselves, and the data set."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import collect
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, write_json
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.published.layouts import LAYOUTS
from chimera_train.latency.published.runs import Batch, Limits, batch_steps
from chimera_train.latency.published.table import read_latency_table
from chimera_train.latency.steps import read_steps

TRUE = {"const": 13.0, "batched": 2.0, "tokens": 0.06, "decode_ctx_tokens": 4e-4}
BATCHES = [Batch(n, t, t) for t, n in itertools.product((128, 256, 512, 1024), (1, 8, 16, 32))]


def true_ms(sums: Mapping[str, float]) -> float:
    return (
        TRUE["const"] * sums["n_steps"]
        + TRUE["batched"] * sums["n_batched_steps"]
        + TRUE["tokens"] * (sums["prefill_tokens"] + sums["decode_tokens"])
        + TRUE["decode_ctx_tokens"] * sums["decode_ctx_tokens"]
    )


def runs(limits: Limits = Limits()) -> pd.DataFrame:  # noqa: B008
    """Whole runs as LLM-Inference-Bench publishes them, in seconds."""
    seconds = [true_ms(batch_steps(batch, limits)) / 1000 for batch in BATCHES]
    return pd.DataFrame(
        {
            "Hardware": "G", "Num of Hardware": 1, "Framework": "vLLM", "Model": "m",
            "Input Output Length": [batch.prompt_tokens for batch in BATCHES],
            "Batch Size": [batch.size for batch in BATCHES],
            "Latency": seconds,
            "Throughput": [b.tokens / s for b, s in zip(BATCHES, seconds, strict=True)],
        }
    )  # fmt: skip


def parts() -> pd.DataFrame:
    """Prompt and token times as Splitwise publishes them, in milliseconds."""
    rows = []
    for size, prompt in itertools.product((1, 4, 16), (128, 512, 2048)):
        first = true_ms(batch_steps(Batch(size, prompt, 1), Limits()))
        token = 13 + 2 * (size > 1) + 0.06 * size + 4e-4 * size * (prompt + 31 / 2)
        rows.append([size, prompt, 33, first, token, first + 32 * token])
    columns = ["batch_size", "prompt_size", "token_size", "prompt_time", "token_time", "e2e_time"]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(model="m", hardware="g", tensor_parallel=2)


def written(directory: Path, frame: pd.DataFrame) -> Path:
    path = directory / "t.csv"
    frame.to_csv(path, index=False)
    return path


def run(*arguments: object) -> tuple[str, str]:
    app = typer.Typer()
    collect.register(app)
    result = CliRunner().invoke(app, ["collect", "import-steps", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_runs_become_sums_that_calibrate_fits(tmp_path: Path) -> None:
    limits = Limits(kv_tokens=20_480)
    source, out = written(tmp_path, runs(limits)), tmp_path / "steps"
    stdout, stderr = run(source, "--from", "latency-table", "--out", out, "--json")
    assert stderr == ""
    values = json.loads(stdout)
    assert (values["rows"], values["origins"]) == (16, {"measured": 16})
    assert values["fitted_kv_tokens"] == pytest.approx(20_480, rel=0.05)
    provenance = read_json(out / "provenance.json")
    assert provenance["kv_tokens"]["origin"] == "fitted"
    assert provenance["engine"]["Framework"] == "vLLM"
    assert provenance["columns"]["step_ms"]["ms_per_unit"] == 1000
    assert not (out / "engine.json").exists()
    document = calibrate(read_steps(out), kind="memory", engine=None).document
    assert document["mape"]["overall"] < 3
    assert document["fitted_on"]["origins"] == {"measured": 16}
    assert {term["origin"] for term in document["terms"]} == {"fitted"}
    fitted = {term["name"]: term["coefficient"] for term in document["terms"]}
    assert fitted["const"] == pytest.approx(13, rel=0.05)
    text, _ = run(source, "--from", "latency-table", "--out", tmp_path / "again")
    assert "KV cache of about" in text


def test_a_known_engine_says_how_large_its_cache_is(tmp_path: Path, step_time) -> None:  # type: ignore[no-untyped-def]
    info = step_time(num_kv_blocks=1281, max_num_seqs=64, max_num_batched_tokens=8192).engine
    source = written(tmp_path, runs(Limits.of(info)))
    write_json(tmp_path / "engine.json", info.model_dump())
    engine = ("--engine", tmp_path / "engine.json")
    run(source, "--from", "latency-table", "--out", tmp_path / "steps", *engine)
    steps = read_steps(tmp_path / "steps")
    document = calibrate(steps, kind="memory", engine=info).document
    assert document["mape"]["overall"] < 1e-6
    fitted = {term["name"]: term["coefficient"] for term in document["terms"]}
    assert fitted == pytest.approx(TRUE, rel=1e-6)
    small = info.model_copy(update={"num_kv_blocks": 120})
    with pytest.raises(DataError, match="a request of 2048 tokens, longer than the 1905 that"):
        read_latency_table(source, {}, small)
    whole = info.model_copy(update={"enable_chunked_prefill": False, "max_num_batched_tokens": 512})
    with pytest.raises(DataError, match="a request of 2048 tokens, longer than the 512 that"):
        read_latency_table(source, {}, whole)


def test_prompt_and_token_times_become_single_steps(tmp_path: Path) -> None:
    published = read_latency_table(written(tmp_path, parts()), {}, None)
    assert published.fitted_kv_tokens is None
    prefill, decode = published.rows[2:4]
    assert (prefill["prefill_tokens"], prefill["decode_tokens"], prefill["n_steps"]) == (512, 0, 1)
    assert (decode["decode_tokens"], decode["decode_ctx_tokens"]) == (1, 512 + 31 / 2)
    assert (decode["max_decode_ctx"], decode["step_ms"]) == (544, parts()["token_time"][1])


def test_this_projects_own_columns(tmp_path: Path) -> None:
    table = pd.DataFrame({"prompt_tokens": [64], "output_tokens": [9], "batch_size": [4]})
    both = table.assign(ttft_ms=20.0, tpot_ms=8.0)
    assert len(read_latency_table(written(tmp_path, both), {}, None).rows) == 2
    (row,) = read_latency_table(written(tmp_path, table.assign(e2e_ms=90.0)), {}, None).rows
    assert (row["engine"], row["n_steps"], row["step_ms"]) == ("published", 9, 90.0)
    assert all(layout.ms in (1.0, 1000.0) for layout in LAYOUTS)


def test_rows_that_contradict_themselves_are_left_out_and_counted(tmp_path: Path) -> None:
    table = runs()
    # What llama.cpp calls a batch size is a chunk of one prompt, and the throughput shows it.
    table.loc[table["Batch Size"] == 8, "Throughput"] /= 8
    table = pd.concat([table, table.tail(2)])
    out = tmp_path / "steps"
    _, stderr = run(written(tmp_path, table), "--from", "latency-table", "--out", out)
    assert "2 rows are left out: they repeat another row" in stderr
    assert "4 rows are left out: they have times that disagree" in stderr
    assert list(read_json(out / "provenance.json")["left_out"].values()) == [4, 2]
    wrong = parts().assign(e2e_time=1.0)
    with pytest.raises(DataError, match="has no usable row: 9 have times that disagree"):
        read_latency_table(written(tmp_path, wrong), {}, None)


def test_bad_tables_write_nothing(tmp_path: Path) -> None:
    out, table = tmp_path / "steps", runs()
    two = pd.concat([table, table.assign(Framework="TensorRT-LLM")])
    negative = table.assign(Latency=table["Latency"].where(table.index > 1, -1.0))
    empty = table.assign(Throughput=table["Throughput"].where(table.index > 0))
    milliseconds = table.assign(
        Latency=table["Latency"] / 1e6, Throughput=table["Throughput"] * 1e6
    )
    for frame, where, error, message in (
        (
            two,
            [],
            DataError,
            r"several engines, pick one with --where \(Framework: TensorRT-LLM, v",
        ),
        (two, ["Framework=x"], DataError, "has no row with Framework = x"),
        (two, ["framework=x"], ConfigError, "no column 'framework' for --where: it has Hardware"),
        (two, ["Framework"], ConfigError, "--where Framework: give COLUMN=VALUE, each column once"),
        (negative, [], DataError, "unusable rows: in 2 Latency is not a number above 0"),
        (table.assign(**{"Batch Size": 1.5}), [], DataError, "that are not whole numbers"),
        (
            table.assign(**{"Batch Size": 10**9}),
            [],
            DataError,
            "batch of 1000000000 requests, more",
        ),
        (empty, [], DataError, "unusable rows: in 1 Throughput is not a number above 0"),
        (milliseconds, [], DataError, "not milliseconds: a tenth of them take .*seconds"),
        (table.drop(columns="Latency"), [], DataError, "has no known set of columns: wanted are"),
    ):
        conditions = [part for each in where for part in ("--where", each)]
        with pytest.raises(error, match=message):
            run(written(tmp_path, frame), "--from", "latency-table", "--out", out, *conditions)
    path = written(tmp_path, table)
    for source, arguments, error, message in (
        (path, ["--from", "xlsx"], ConfigError, "Unknown format 'xlsx': use llmservingsim or lat"),
        (path, ["--from", "latency-table", "--layers", 2], ConfigError, "--layers, .* belongs to"),
        (path, ["--from", "llmservingsim"], ConfigError, "is needed there"),
        (tmp_path / "no", ["--from", "latency-table"], DataError, "no does not exist"),
        (tmp_path, ["--from", "latency-table"], DataError, "not a readable CSV"),
    ):
        with pytest.raises(error, match=message):
            run(source, *arguments, "--out", out)
    assert not out.exists()


def test_one_batch_size_is_too_few(tmp_path: Path) -> None:
    table = runs()
    source, out = written(tmp_path, table[table["Batch Size"] == 1]), tmp_path / "steps"
    run(source, "--from", "latency-table", "--out", out)
    with pytest.raises(
        DataError, match=r"1 batch shapes \(decode_tokens\) among its steps without"
    ):
        calibrate(read_steps(out), kind=None, engine=None)
    table = runs()
    one = table[table["Input Output Length"] == 128]
    run(written(tmp_path, one), "--from", "latency-table", "--out", tmp_path / "one")
    with pytest.raises(DataError, match=r"1 context length \(about 191 tokens\) among its steps"):
        calibrate(read_steps(tmp_path / "one"), kind=None, engine=None)

"""Recorded requests are predicted as the engine would serve them, and judged against themselves."""

import dataclasses
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import simulate as command
from chimera_train.errors import ConfigError, DataError, QualityGateError
from chimera_train.files import write_json
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.steps import Steps
from chimera_train.simulate.replay import fit_overhead, judge, read_requests, replay

TIMES = {"ttft_ms": 50.0, "tpot_ms": 10.0, "e2e_ms": 60.0}


def requests(n=40, *, seed=0, gap_ms=30.0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "arrival_ms": np.sort(rng.uniform(0, gap_ms * n, n)),
            "prompt_tokens": rng.integers(1, 100, n),
            "output_tokens": rng.integers(1, 20, n),
        }
    )


def measured_by(model, frame):
    """Requests whose measurements are what an engine of ``model`` does."""
    predicted = replay(model, frame).predicted
    return frame.assign(**{name: predicted[name] for name in ("ttft_ms", "tpot_ms", "e2e_ms")})


def test_one_request_by_hand(step_time):
    # 100 prompt tokens in chunks of 64 and 36, then two more tokens: four steps of 10 ms.
    frame = pd.DataFrame({"arrival_ms": [5.0], "prompt_tokens": [100], "output_tokens": [3]})
    result = replay(step_time(), frame)
    assert result.predicted.loc[0, ["ttft_ms", "tpot_ms", "e2e_ms"]].tolist() == [20.0, 10.0, 40.0]
    assert (result.steps, result.preemptions) == (4, 0)
    later = replay(step_time(), frame, overhead_ms=2.5).predicted
    assert later.loc[0, ["ttft_ms", "tpot_ms", "e2e_ms"]].tolist() == [25.0, 12.5, 50.0]


def test_a_request_that_arrives_within_a_step_waits_for_its_end(step_time):
    frame = pd.DataFrame(
        {"arrival_ms": [0.0, 4.0], "prompt_tokens": [10, 10], "output_tokens": [3, 1]}
    )
    predicted = replay(step_time(), frame).predicted
    assert predicted["ttft_ms"].tolist() == [10.0, 16.0]
    assert np.isnan(predicted["tpot_ms"][1])


def test_an_engine_predicts_itself_exactly(step_time):
    frame = measured_by(step_time(), requests())
    judged = judge(replay(step_time(), frame).predicted, frame)
    assert judged["e2e"]["mape"] == judged["ttft"]["mape"] == judged["tpot"]["mape"] == 0
    assert judged["makespan"]["predicted_ms"] == judged["makespan"]["measured_ms"]


def test_a_prompt_that_came_before_is_not_computed_again(step_time, tmp_path):
    # Steps of 1 ms a prompt token. Of 40 tokens 32 are whole blocks; the last is always computed.
    model = step_time(terms={"prefill_tokens": 1.0}, enable_prefix_caching=True, num_kv_blocks=100)
    frame = pd.DataFrame(
        {
            "arrival_ms": [0.0, 1000.0, 2000.0, 3000.0],
            "prompt_tokens": [40, 40, 40, 32],
            "output_tokens": 1,
            "e2e_ms": 1.0,
            "prompt_block_hashes": [["a", "b"], ["a", "c"], ["a", "b"], ["a", "b"]],
        }
    )
    recorded = read_requests(write(tmp_path / "r.jsonl", frame))
    assert replay(model, recorded).predicted["ttft_ms"].tolist() == [40, 24, 8, 16]
    nothing_shared = replay(model, recorded.drop(columns="prompt_block_hashes")).predicted
    assert nothing_shared["ttft_ms"].tolist() == [40, 40, 40, 32]
    # In blocks of 32 tokens only the whole prompt is a hit.
    larger = dataclasses.replace(model, engine=model.engine.model_copy(update={"block_size": 32}))
    assert replay(larger, recorded).predicted["ttft_ms"].tolist() == [40, 40, 8, 32]
    odd = dataclasses.replace(model, engine=model.engine.model_copy(update={"block_size": 24}))
    with pytest.raises(DataError, match="blocks of 16 tokens, of which the engine's blocks of 24"):
        replay(odd, recorded)


def test_an_asynchronous_engine_computes_once_more_what_the_model_ended(step_time, tmp_path):
    model = step_time(async_scheduling=True)
    frame = pd.DataFrame(
        {"arrival_ms": [0.0], "prompt_tokens": [5], "output_tokens": [3], "e2e_ms": [30.0]}
    )
    steps = []
    for reason in ("length", "stop"):
        recorded = read_requests(write(tmp_path / "r.jsonl", frame.assign(finish_reason=reason)))
        result = replay(model, recorded)
        assert result.predicted["e2e_ms"].tolist() == [30.0]
        steps.append(result.steps)
    assert steps == [3, 4]


def test_figures_by_hand():
    measured = pd.DataFrame(
        {"arrival_ms": [0.0, 100.0], "e2e_ms": [100.0, 200.0], "tpot_ms": [0.0, 10.0]}
    )
    predicted = pd.DataFrame(
        {"arrival_ms": [0.0, 100.0], "e2e_ms": [110.0, 160.0], "tpot_ms": [np.nan, 11.0]}
    )
    figures = judge(predicted, measured)
    assert set(figures) == {"tpot", "e2e", "makespan"}
    assert figures["e2e"]["mape"] == pytest.approx((10 + 20) / 2)
    assert figures["e2e"]["bias_mean"] == pytest.approx(100 * (135 / 150 - 1))
    assert figures["e2e"]["bias_p90"] == pytest.approx(100 * (155 / 190 - 1))
    # The request of one token has no TPOT.
    assert figures["tpot"]["mape"] == pytest.approx(10)
    assert figures["makespan"] == {"predicted_ms": 260.0, "measured_ms": 300.0}


def test_the_overhead_is_found_on_the_first_part_alone(step_time):
    slower = step_time(terms={"const": 13.0})
    frame = measured_by(slower, requests())
    # What was measured of the later ones is not looked at.
    frame.loc[20:, "e2e_ms"] = 1e6
    assert fit_overhead(step_time(), frame, 20) == pytest.approx(3.0, abs=0.01)
    assert fit_overhead(step_time(terms={"const": 20.0}), frame, 20) == 0.0


def test_steps_outside_the_fitted_range_are_counted(step_time):
    frame = pd.DataFrame({"arrival_ms": [0.0], "prompt_tokens": [100], "output_tokens": [3]})
    inside = step_time(ranges={"prefill_tokens": (1, 64), "mean_decode_ctx": (1, 101)})
    assert replay(inside, frame).extrapolated_steps == 0
    outside = step_time(ranges={"prefill_tokens": (1, 40), "mean_decode_ctx": (1, 100)})
    assert replay(outside, frame).extrapolated_steps == 2


def write(path, frame):
    lines = "".join(json.dumps(row) + "\n" for row in frame.to_dict("records"))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)
    return path


@pytest.mark.parametrize("name", ["r.jsonl", "r.jsonl.gz", "r.parquet"])
def test_requests_are_read_in_order_of_arrival(tmp_path, step_time, name):
    frame = measured_by(step_time(), requests())
    shuffled = frame.sample(frac=1, random_state=0).assign(other="text")
    path = tmp_path / name
    if path.suffix == ".parquet":
        shuffled.to_parquet(path)
    else:
        write(path, shuffled.fillna(0.0))
        frame = frame.fillna(0.0)
    if path.suffix == ".parquet":
        with pytest.raises(DataError, match=r"\d+ hold a value that is empty"):
            read_requests(path)
        shuffled.fillna(0.0).to_parquet(path)
        frame = frame.fillna(0.0)
    pd.testing.assert_frame_equal(read_requests(path), frame)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_ms": None}, r"lacks the column\(s\) arrival_ms"),
        ({"e2e_ms": None, "ttft_ms": None, "tpot_ms": None}, "nothing to compare"),
        ({"e2e_ms": "soon"}, "40 hold a value that is empty, infinite or not a number"),
        ({"e2e_ms": -1.0}, "40 have a negative time"),
        ({"ttft_ms": 0.0}, "40 have a ttft_ms or e2e_ms of 0"),
        ({"ttft_ms": 1e-3, "e2e_ms": 0.02}, r"a ttft_ms of 0\.001 ms .*: are they seconds\?"),
        ({"ttft_ms": 1.0, "e2e_ms": 1.2}, r"a e2e_ms of .*: are they seconds\?"),
        ({"request_id": "a"}, "39 repeat an earlier one"),
        ({"arrival_ms": 0.0, "prompt_tokens": 3, "output_tokens": 2, **TIMES}, "39 repeat an"),
        ({"output_tokens": 0}, "40 have less than one token"),
        ({"prompt_tokens": 1.5}, "40 have less than one token or a part of one"),
        ({"ttft_ms": 1e9}, "40 have their first token after their last"),
        ({"prompt_block_hashes": "ab"}, "40 rows whose prompt_block_hashes is not a list of one"),
    ],
)
def test_unusable_requests_are_refused(tmp_path, step_time, change, message):
    frame = measured_by(step_time(), requests()).fillna(0.0).assign(**change)
    dropped = [name for name, value in change.items() if value is None]
    with pytest.raises(DataError, match=message):
        read_requests(write(tmp_path / "r.jsonl", frame.drop(columns=dropped)))


@pytest.mark.parametrize("hashes", [["a"], [["a"], ["b"]], [1, None], [0.5, 1.5]])
def test_hashes_that_are_none_are_refused(tmp_path, hashes):
    row = {"arrival_ms": 0.0, "prompt_tokens": 40, "output_tokens": 1, "e2e_ms": 9.0}
    (tmp_path / "r.jsonl").write_text(json.dumps({**row, "prompt_block_hashes": hashes}) + "\n")
    with pytest.raises(DataError, match=r"not a list of one hash .* \(texts or integers"):
        read_requests(tmp_path / "r.jsonl")


def test_files_that_are_no_requests_are_refused(tmp_path, step_time):
    with pytest.raises(DataError, match="does not exist"):
        read_requests(tmp_path / "r.jsonl")
    (tmp_path / "r.txt").write_text("")
    with pytest.raises(ConfigError, match=r"not a \.csv, \.jsonl or"):
        read_requests(tmp_path / "r.txt")
    for name, content in (("r.jsonl", b"{"), ("r.jsonl.gz", b"{"), ("r.parquet", b"{")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="not a readable table"):
            read_requests(tmp_path / name)
    long = pd.DataFrame({"arrival_ms": [0.0], "prompt_tokens": [5000], "output_tokens": [3]})
    with pytest.raises(DataError, match=r"1 request\(s\) can never run .* 5000 prompt and 3"):
        replay(step_time(), long)
    with pytest.raises(ConfigError, match="must leave some of the 40 requests"):
        fit_overhead(step_time(), requests(), 40)
    hopeless = requests().assign(e2e_ms=1e9)
    with pytest.raises(DataError, match="of another engine"):
        fit_overhead(step_time(), hopeless, 10)


@pytest.fixture
def files(tmp_path, step_time):
    """Recorded requests, and the coefficient file and engine.json of what served them."""
    rng = np.random.default_rng(0)
    prefill, decode = rng.integers(0, 64, 400), rng.integers(0, 5, 400)
    decode[prefill == 0] = 1 + decode[prefill == 0]
    steps = pd.DataFrame(
        {
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "decode_ctx_tokens": decode * rng.integers(1, 120, 400),
            "prefill_attn": prefill * (prefill + 1) / 2,
            "step_ms": 10.0,
        }
    )
    source = tmp_path / "steps.csv"
    steps.to_csv(source, index=False)
    engine = step_time().engine
    document = calibrate(Steps(steps, source), kind="eq9", engine=engine).document
    write_json(tmp_path / "latency.json", dict(document))
    write_json(tmp_path / "engine.json", engine.model_dump())
    recorded = measured_by(step_time(), requests()).fillna(0.0)
    write(tmp_path / "requests.jsonl", recorded)
    return tmp_path


def run(files, *arguments):
    app = typer.Typer()
    command.register(app)
    common = ["--requests", files / "requests.jsonl", "--latency", files / "latency.json"]
    words = ["simulate", "replay", *common, *arguments]
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command(files):
    plot = files / "plot.png"
    result = run(files, "--engine", files / "engine.json", "--plot", plot, "--json")
    values = json.loads(result.stdout)
    assert values["requests"] == 40
    assert values["e2e"]["mape"] < 0.1
    assert set(values["makespan"]) == {"predicted_ms", "measured_ms"}
    assert (values["overhead_ms"], values["waived"]) == (0.0, [])
    assert plot.read_bytes().startswith(b"\x89PNG")
    text = run(files, "--fit-overhead-first", "10").stdout
    assert "30 requests with the model 'eq9'" in text
    assert "fitted on the first 10 requests" in text


def test_the_gate(files):
    run(files, "--max-mape", "1")
    slow = read_requests(files / "requests.jsonl")
    slow["e2e_ms"] *= 2
    write(files / "requests.jsonl", slow)
    with pytest.raises(QualityGateError, match=r"MAPE of E2E is 50\.00 %, above --max-mape 1"):
        run(files, "--max-mape", "1")
    write(files / "requests.jsonl", slow.drop(columns="e2e_ms"))
    with pytest.raises(ConfigError, match="--max-mape looks at e2e_ms"):
        run(files, "--max-mape", "1")


def test_another_engine_is_refused_unless_that_is_waived(files):
    engine = json.loads((files / "engine.json").read_text())
    write_json(files / "engine.json", engine | {"num_kv_blocks": 900, "vllm_version": "1"})
    other = ("--engine", files / "engine.json")
    with pytest.raises(DataError, match=r"differs in vllm_version .*num_kv_blocks"):
        run(files, *other)
    with pytest.raises(DataError, match=r"differs in num_kv_blocks \(1025 there, 900 here\)"):
        run(files, *other, "--allow-mismatch", "vllm_version")
    allowed = ("--allow-mismatch", "vllm_version", "--allow-mismatch", "num_kv_blocks")
    values = json.loads(run(files, *other, *allowed, "--json").stdout)
    assert values["waived"] == ["vllm_version", "num_kv_blocks"]
    with pytest.raises(ConfigError, match="waives fields of --engine, which is not given"):
        run(files, *allowed)
    with pytest.raises(ConfigError, match="--allow-mismatch colour: an engine has no such field"):
        run(files, *other, "--allow-mismatch", "colour")

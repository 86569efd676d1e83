"""The coefficient file and the command: constants by hand, nothing written on bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from chimera_train.cli import calibrate as command
from chimera_train.errors import ConfigError, DataError
from chimera_train.files import read_json, write_json
from chimera_train.latency.calibrate import calibrate
from chimera_train.latency.load_constants import (
    load_constants,
    mean_context_of_steps,
    mean_context_of_traces,
)
from chimera_train.latency.steps import Steps, read_steps
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_terms import KINDS, compile_model
from chimera_train.predict.step_time import StepTimeModel
from chimera_train.traces.store import write_table

Make = Callable[..., pd.DataFrame]


def run(*arguments: object) -> tuple[str, str]:
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def written(directory: Path, frame: pd.DataFrame) -> Path:
    path = directory / "steps.csv"
    frame.to_csv(path, index=False)
    return path


def steps_directory(directory: Path, frame: pd.DataFrame, engine: EngineInfo) -> Path:
    write_table(directory, "steps", frame.to_dict("records"))
    write_json(directory / "engine.json", engine.model_dump())
    return directory


def write_traces(directory: Path) -> Path:
    """Two programs of package:small, contexts 100 + 50/2 and 300 + 10/2; one of another model."""
    programs, stages = [], []
    for program, model, lengths in (
        ("a", "package:small", [(100, 50), (300, 10)]),
        ("b", "other", [(9000, 9000)]),
    ):
        programs.append(
            {
                "program_id": program, "task": "t", "question_id": program, "workflow": "w",
                "model": model, "sample": 0, "n_stages": len(lengths), "total_output_tokens": 1,
            }
        )  # fmt: skip
        stages += [
            {
                "program_id": program, "stage_index": index, "stage": str(index), "attempt": 0,
                "prompt_tokens": prompt, "output_tokens": output,
            }
            for index, (prompt, output) in enumerate(lengths)
        ]  # fmt: skip
    stages.append({**stages[0], "stage_index": 9, "prompt_tokens": 5000, "error": "timed out"})
    write_table(directory, "programs", programs)
    write_table(directory, "stages", stages)
    write_table(directory, "questions", [])
    return directory


def test_load_constants_by_hand(engine: EngineInfo) -> None:
    eq9 = {
        "const": 8.0, "prefill_tokens": 0.05, "decode_tokens": 0.25, "decode_ctx_tokens": 0.0005,
        "prefill_attn": 1e-5,
    }  # fmt: skip
    # 1000 blocks of 16 tokens hold 32 contexts of 500 exactly; 32 sequences are allowed.
    # T = 8 + 32·0.25 + 32·500·0.0005 = 8 + 8 + 8
    assert load_constants(compile_model(eq9), engine, 500.0) == (32, 24.0)
    # They hold 15.99 contexts of 1000.5: 15. T = 8 + 15·0.25 + 15·1000.5·0.0005
    batch, decode_ms_per_token = load_constants(compile_model(eq9), engine, 1000.5)
    assert batch == 15
    assert decode_ms_per_token == pytest.approx(8 + 3.75 + 7.50375, rel=1e-12)
    tokens = compile_model({"const": 3.0, "tokens": 0.5})
    # Plenty of memory: max_num_seqs bounds the batch, and tokens alone have no context term.
    roomy = engine.model_copy(update={"max_num_seqs": 4, "num_kv_blocks": 10**6})
    assert load_constants(tokens, roomy, 500.0) == (4, 5.0)
    # A cache smaller than one context still serves one sequence.
    tiny = engine.model_copy(update={"num_kv_blocks": 2})
    assert load_constants(tokens, tiny, 500.0) == (1, 3.5)


def test_mean_contexts_by_hand(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"decode_tokens": [1.0, 3.0, 0.0], "decode_ctx_tokens": [100.0, 900.0, 0.0]}
    )
    assert mean_context_of_steps(Steps(frame, tmp_path)) == 250.0
    write_traces(tmp_path)
    # (125 + 305) / 2: the stage that failed and the other model do not count.
    assert mean_context_of_traces(tmp_path, "package:small") == 215.0
    with pytest.raises(DataError, match="no stage of the engine's model 'x', only of other, pack"):
        mean_context_of_traces(tmp_path, "x")


def test_two_engines_end_to_end(tmp_path: Path, steps_frame: Make, engine: EngineInfo) -> None:
    traces = write_traces(tmp_path / "traces")
    slow = engine.model_copy(update={"max_num_seqs": 8})
    frame = steps_frame(300)
    expected = {
        # Noise-free steps, so the true coefficients: 32 and 8 sequences at 215 tokens.
        "fast": (engine, frame, 32, 8 + 32 * 0.2 + 32 * 215 * 3e-4),
        "slow": (slow, frame.assign(step_ms=2 * frame["step_ms"]), 8, 2 * (8 + 1.6 + 0.516)),
    }
    for name, (info, measured, batch, decode_ms_per_token) in expected.items():
        source = steps_directory(tmp_path / name, measured, info)
        out = tmp_path / f"{name}.json"
        run("--steps", source, "--traces", traces, "--out", out, "--json")
        model = StepTimeModel.load(out, expect=info)
        assert model.max_batch_size == batch
        assert model.decode_ms_per_token == pytest.approx(decode_ms_per_token, rel=1e-9)
        assert read_json(out)["mean_context_source"] == "traces"


def test_the_file_predicts_the_steps_it_was_fitted_on(
    tmp_path: Path, steps_frame: Make, engine: EngineInfo
) -> None:
    frame = steps_frame(300)
    out = tmp_path / "latency.json"
    for kind in ("eq9", "tokens"):
        run(
            "--steps", steps_directory(tmp_path / "s", frame, engine), "--out", out, "--model", kind
        )
        model = StepTimeModel.load(out, expect=engine)
        predicted = model.step_ms(
            *(
                frame[name].to_numpy()
                for name in ("prefill_tokens", "decode_tokens", "decode_ctx_tokens", "prefill_attn")
            )
        )
        relative = abs(predicted / frame["step_ms"] - 1).mean()
        assert relative < 1e-9 if kind == "eq9" else 0.01 < relative < 0.5


def test_json_and_text(tmp_path: Path, steps_frame: Make, engine: EngineInfo) -> None:
    source = steps_directory(tmp_path / "s", steps_frame(300, noise=0.05), engine)
    out, plot = tmp_path / "latency.json", tmp_path / "plot.png"
    stdout, stderr = run("--steps", source, "--out", out, "--json", "--plot", plot)
    values = json.loads(stdout)
    assert stderr == ""
    assert values["model"] == "eq9"
    assert list(values["mape"]) == ["overall", "decode_only", "prefill_only", "mixed"]
    # E|lognormal(0, 0.05) - 1| is about 0.05·√(2/π) = 4 %.
    assert 3 < values["mape"]["overall"] < 5 < values["baselines"]["tokens"]["mape"]["overall"]
    assert {term["name"]: term["unit"] for term in values["terms"]}["const"] == "ms"
    assert values["fitted_on"]["ranges"]["prefill_tokens"] == [16.0, 1024.0]
    assert {**read_json(out), "model": "eq9", "out": str(out)} == values
    assert plot.read_bytes().startswith(b"\x89PNG")
    text, _ = run("--steps", source, "--out", out)
    lines = [line.split()[0] for line in text.splitlines() if line]
    assert lines[1] == "model"
    assert set(lines[2 : 3 + len(KINDS)]) == {*KINDS, "same"}
    assert "max_batch_size" in text


@pytest.mark.parametrize(
    ("extra_ms", "chosen"),
    [
        (lambda tokens: 0 * tokens, "eq9"),
        (lambda tokens: 0.5 * (tokens - 256).clip(lower=0), "eq9-plus"),
        (lambda tokens: 40 * np.ceil(tokens / 100), "table"),
    ],
)
def test_the_simplest_model_that_is_as_good_as_the_best_is_chosen(
    tmp_path: Path, steps_frame: Make, extra_ms: Callable[[pd.Series], pd.Series], chosen: str
) -> None:
    frame = steps_frame(2000)
    tokens = frame["prefill_tokens"] + frame["decode_tokens"]
    frame["step_ms"] = (frame["step_ms"] + extra_ms(tokens)) * np.random.default_rng(0).lognormal(
        0, 0.05, len(frame)
    )
    document = calibrate(Steps(frame, written(tmp_path, frame)), kind=None, engine=None).document
    assert document["kind"] == chosen
    assert {*document["baselines"], chosen} == set(KINDS)
    assert (document["table"] is None) == (chosen == "eq9")
    assert document["mape"]["overall"] < 6
    assert document["unseen_shapes"]["mape"]["overall"] < 8


def test_tokens_are_all_that_can_be_fitted_on_tokens(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(300)[["prefill_tokens", "decode_tokens", "step_ms"]]
    document = calibrate(Steps(frame, written(tmp_path, frame)), kind=None, engine=None).document
    assert document["kind"] == "tokens"
    assert document["baselines"] == {}


def write_sharing(path: Path, **changes: object) -> Path:
    value = {
        "schema_version": 1,
        "device_group": "gpu",
        "device": "cpu",
        "engines": {"a": "package:small", "b": "other"},
        "rounds": 9,
        "n_seqs": 8,
        "alone_ms_per_token": {"a": 2.0, "b": 3.0},
        "slowdown": [1.0, 1.4],
        "quartiles": [[1.0, 1.0], [1.3, 1.5]],
    }
    write_json(path, value | changes)
    return path


def test_the_file_keeps_the_sharing_curve(
    tmp_path: Path, steps_frame: Make, engine: EngineInfo
) -> None:
    source = steps_directory(tmp_path / "s", steps_frame(300), engine)
    sharing, out = write_sharing(tmp_path / "sharing.json"), tmp_path / "latency.json"
    text, _ = run("--steps", source, "--sharing", sharing, "--out", out)
    assert "engines of 'gpu' busy: times 1, 1.4" in text
    assert read_json(out)["device_group"] == "gpu"
    assert StepTimeModel.load(out).sharing_curve == (1.0, 1.4)
    run("--steps", source, "--out", out)
    assert read_json(out)["sharing_curve"] is None
    assert StepTimeModel.load(out).sharing_curve == ()


def test_a_sharing_curve_that_is_not_the_engines_or_damaged_is_refused(
    tmp_path: Path, steps_frame: Make, engine: EngineInfo
) -> None:
    source = steps_directory(tmp_path / "s", steps_frame(300), engine)
    out = tmp_path / "latency.json"
    changes: list[tuple[type[Exception], dict[str, object], str]] = [
        (
            ConfigError,
            {"engines": {"a": "x", "b": "y"}},
            r"'gpu' was measured with a \(x\), b \(y\), none of which serves 'package:small'",
        ),
        (DataError, {"schema_version": 2}, "schema version 2, newer"),
        (DataError, {"slowdown": [1.1, 1.4]}, "the first factor .* must be 1"),
        (DataError, {"slowdown": [1.0, 0.9]}, r"slowdown\.1"),
        (DataError, {"slowdown": [1.0]}, "one entry for each of the 2 engines"),
        (DataError, {"rounds": None}, "rounds"),
    ]
    for error, change, words in changes:
        sharing = write_sharing(tmp_path / "sharing.json", **change)
        with pytest.raises(error, match=words):
            run("--steps", source, "--sharing", sharing, "--out", out)
    with pytest.raises(DataError, match="does not exist"):
        run("--steps", source, "--sharing", tmp_path / "none.json", "--out", out)
    steps_frame(300).to_csv(tmp_path / "s.csv", index=False)
    sharing = write_sharing(tmp_path / "sharing.json")
    with pytest.raises(ConfigError, match="can only be kept for a known engine"):
        run("--steps", tmp_path / "s.csv", "--sharing", sharing, "--out", out)
    assert not out.exists()


def test_without_engine_json_figures_but_no_usable_model(tmp_path: Path, steps_frame: Make) -> None:
    steps_frame(300).to_csv(tmp_path / "s.csv", index=False)
    out = tmp_path / "latency.json"
    stdout, stderr = run("--steps", tmp_path / "s.csv", "--out", out, "--json")
    assert "no engine.json" in stderr
    assert json.loads(stdout)["max_batch_size"] is None
    with pytest.raises(DataError, match="calibrate again with --engine"):
        StepTimeModel.load(out)


@pytest.mark.parametrize(("status", "is_said"), [("partial", True), ("complete", False)])
def test_a_profile_that_was_cut_short_is_used_and_said(
    tmp_path: Path, steps_frame: Make, status: str, is_said: bool
) -> None:
    write_table(tmp_path, "steps", steps_frame().to_dict("records"))
    write_json(tmp_path / "provenance.json", {"status": status})
    _, stderr = run("--steps", tmp_path, "--out", tmp_path / "model.json")
    assert ("holds a part of a profile" in stderr) is is_said


@pytest.mark.parametrize("provenance", ["[]", "{"])
def test_a_damaged_provenance_is_refused(
    tmp_path: Path, steps_frame: Make, provenance: str
) -> None:
    write_table(tmp_path, "steps", steps_frame().to_dict("records"))
    (tmp_path / "provenance.json").write_text(provenance)
    with pytest.raises(DataError, match=r"provenance\.json is not"):
        run("--steps", tmp_path, "--out", tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


def test_bad_input_writes_nothing(tmp_path: Path, steps_frame: Make, engine: EngineInfo) -> None:
    frame = steps_frame(300)
    plain = tmp_path / "plain.csv"
    frame[["prefill_tokens", "decode_tokens", "step_ms", "step"]].to_csv(plain, index=False)
    steps = steps_directory(tmp_path / "s", frame, engine)
    before = set(tmp_path.rglob("*"))
    out = ("--out", tmp_path / "new" / "latency.json", "--plot", tmp_path / "new" / "plot.png")
    needs = r"lacks the column\(s\) decode_ctx_tokens, prefill_attn, which the model 'eq9' needs"
    with pytest.raises(DataError, match=needs):
        run("--steps", plain, "--model", "eq9", *out)
    with pytest.raises(DataError, match="decode_ctx_tokens, which the mean context"):
        run("--steps", plain, "--model", "tokens", "--engine", steps / "engine.json", *out)
    with pytest.raises(
        ConfigError, match="Unknown step-time model 'eq10': use auto, tokens, memory"
    ):
        run("--steps", steps, "--model", "eq10", *out)
    with pytest.raises(ConfigError, match=r"give its engine\.json with --engine"):
        run("--steps", plain, "--model", "tokens", "--traces", tmp_path, *out)
    with pytest.raises(DataError, match="leaves 0 steps"):
        run("--steps", steps, "--max-context", "1", *out)
    with pytest.raises(DataError, match="does not exist"):
        run("--steps", steps, "--engine", tmp_path / "engine.json", *out)
    small = tmp_path / "small.json"
    write_json(small, engine.model_copy(update={"num_kv_blocks": 100}).model_dump())
    before.add(small)
    with pytest.raises(DataError, match="a request of 1998 tokens, longer than the 1600 of"):
        run("--steps", steps, "--engine", small, *out)
    assert set(tmp_path.rglob("*")) == before


def test_public_steps(public_steps: Path, engine: EngineInfo) -> None:
    steps = read_steps(public_steps, max_context=4096)
    document = calibrate(steps, kind="eq9", engine=engine).document
    assert document["fitted_on"]["steps"] == 4044
    assert document["stalls"]["probability"] == 0
    assert document["mean_context_source"] == "decode steps"

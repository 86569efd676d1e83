"""Reading steps: every accepted format says the same, and unusable rows are counted and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from chimera_train.errors import ConfigError, DataError
from chimera_train.latency.steps import read_steps
from chimera_train.traces.store import write_table

Make = Callable[..., pd.DataFrame]


def test_directory_parquet_and_csv_give_the_same_steps(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(40)
    write_table(tmp_path, "steps", frame.to_dict("records"))
    frame.to_csv(tmp_path / "s.csv", index=False)
    frame.to_csv(tmp_path / "s.csv.gz", index=False)
    expected = read_steps(tmp_path).frame
    assert len(expected) == 40
    np.testing.assert_array_equal(expected["step_ms"], frame["step_ms"])
    for name in ("steps.parquet", "s.csv", "s.csv.gz"):
        pd.testing.assert_frame_equal(read_steps(tmp_path / name).frame, expected)


def test_three_columns_are_enough_and_empty_optional_ones_count_as_absent(tmp_path: Path) -> None:
    rows = [
        {"engine": "e", "step": i, "prefill_tokens": 0, "decode_tokens": 1 + i, "step_ms": 5.0 + i}
        for i in range(4)
    ]
    write_table(tmp_path, "steps", rows)
    pd.DataFrame(rows).drop(columns=["engine", "step"]).to_csv(tmp_path / "s.csv", index=False)
    for source in (tmp_path, tmp_path / "s.csv"):
        steps = read_steps(source)
        assert set(steps.frame) == {"prefill_tokens", "decode_tokens", "step_ms"}
        with pytest.raises(DataError, match=r"lacks the column\(s\) prefill_attn, which it needs"):
            steps.require(["decode_tokens", "prefill_attn"], "it")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("step_ms", [np.nan, np.inf], "in 2 step_ms is empty, infinite or not a number"),
        ("step_ms", ["fast"], "in 1 step_ms is empty, infinite or not a number"),
        ("decode_ctx_tokens", [np.nan], "in 1 decode_ctx_tokens is empty"),
        ("step_ms", [0.0, -1.0, -2.0], "in 3 step_ms is not above 0"),
        ("prefill_tokens", [-1], "in 1 a count is negative"),
    ],
)
def test_bad_values_are_counted(
    tmp_path: Path, steps_frame: Make, column: str, values: list[object], message: str
) -> None:
    frame = steps_frame(40).astype({column: object})
    frame.loc[: len(values) - 1, column] = values
    frame.to_csv(tmp_path / "s.csv", index=False)
    with pytest.raises(DataError, match=message):
        read_steps(tmp_path / "s.csv")


def test_an_empty_batch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text("prefill_tokens,decode_tokens,step_ms\n0,0,5\n0,1,6\n")
    with pytest.raises(DataError, match="in 1 the batch is empty"):
        read_steps(path)


@pytest.mark.parametrize(
    ("one", "other"),
    [("prefill_tokens", "prefill_attn"), ("decode_tokens", "decode_ctx_tokens")],
)
def test_swapped_columns_are_noticed(
    tmp_path: Path, steps_frame: Make, one: str, other: str
) -> None:
    frame = steps_frame(40).rename(columns={one: other, other: one})
    frame.to_csv(tmp_path / "s.csv", index=False)
    with pytest.raises(DataError, match=f"{other} is below {one}"):
        read_steps(tmp_path / "s.csv")


def test_repeated_rows(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(40, noise=0.1)
    path = tmp_path / "s.csv"
    pd.concat([frame, frame[:7]]).to_csv(path, index=False)
    with pytest.raises(DataError, match="7 repeat an earlier row"):
        read_steps(path)
    # Equal measurements of two steps are no repetition, but without step numbers look like one.
    twice = pd.concat([frame, frame.assign(step=frame["step"] + 40)])
    twice.to_csv(path, index=False)
    assert len(read_steps(path).frame) == 80
    twice.drop(columns="step").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"40 repeat .* column 'step' would tell"):
        read_steps(path)


def test_two_engines_need_a_name(tmp_path: Path, steps_frame: Make) -> None:
    small, large = steps_frame(10), steps_frame(20, seed=1).assign(engine="large")
    write_table(tmp_path, "steps", pd.concat([small, large]).to_dict("records"))
    with pytest.raises(DataError, match=r"several engines \(large, small\).*--engine-name"):
        read_steps(tmp_path)
    assert len(read_steps(tmp_path, engine_name="large").frame) == 20
    with pytest.raises(DataError, match="no steps of engine 'medium', only of large, small"):
        read_steps(tmp_path, engine_name="medium")


def test_max_context_looks_at_both_kinds_of_sequence(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(200)
    frame.to_csv(tmp_path / "s.csv", index=False)
    kept = read_steps(tmp_path / "s.csv", max_context=512).frame
    assert kept[["max_prefill_ctx", "max_decode_ctx"]].to_numpy().max() <= 512
    fits = (frame["max_prefill_ctx"] <= 512) & (frame["max_decode_ctx"] <= 512)
    assert len(kept) == fits.sum() < 200
    frame.drop(columns="max_decode_ctx").to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match="max_decode_ctx, which --max-context needs"):
        read_steps(tmp_path / "t.csv", max_context=512)


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("s.csv", b"", DataError, "not a readable table"),
        ("s.csv", b"\xff\xfe\x00x", DataError, "not a readable table"),
        ("s.csv.gz", b"plain text", DataError, "not a readable table"),
        ("s.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03zz", DataError, "not a readable"),
        ("s.csv", b"a,b\n1,2\n", DataError, "lacks the column"),
        ("steps.parquet", b"nonsense", DataError, "not a readable Parquet"),
        ("s.xlsx", b"", ConfigError, "not a source of steps"),
    ],
)
def test_unreadable_files(
    tmp_path: Path, name: str, content: bytes, error: type[Exception], message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        read_steps(tmp_path / name)


def test_missing_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_steps(tmp_path / "nowhere")


def test_origins_are_counted(tmp_path: Path, steps_frame: Make) -> None:
    frame = steps_frame(40)
    path = tmp_path / "s.csv"
    frame.to_csv(path, index=False)
    assert read_steps(path).origins == {"measured": 40}
    frame["origin"] = ["composed"] * 30 + ["extrapolated"] * 4 + [None] * 6
    frame.to_csv(path, index=False)
    assert read_steps(path).origins == {"composed": 30, "measured": 6, "extrapolated": 4}
    frame.assign(origin="guessed").to_csv(path, index=False)
    with pytest.raises(DataError, match=r"has the origin\(s\) guessed: use measured, composed, ex"):
        read_steps(path)

"""A coefficient file is used by name, for its own engine, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimera_train.errors import DataError
from chimera_train.pool.schema import EngineInfo
from chimera_train.predict.step_terms import KINDS, TERMS, step_ms
from chimera_train.predict.step_time import StepTimeModel

ENGINE: dict[str, Any] = {
    "model": "package:small",
    "device": "cpu",
    "vllm_version": "0.32.0",
    "max_num_seqs": 32,
    "max_num_batched_tokens": 2048,
    "max_model_len": 2048,
    "block_size": 16,
    "num_kv_blocks": 1000,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "scheduling_policy": "priority",
    "async_scheduling": True,
    "tensor_parallel_size": 1,
}
NAMES = KINDS["eq9"].terms
COEFFICIENTS = dict(zip(NAMES, (8.0, 0.05, 0.25, 0.0005, 1e-5), strict=True))


def document() -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "eq9",
        "terms": [
            {"name": name, "unit": TERMS[name].unit, "coefficient": coefficient}
            for name, coefficient in COEFFICIENTS.items()
        ],
        "engine": dict(ENGINE),
        "device": "cpu",
        "fitted_on": {"steps": 100, "source": "s.csv", "ranges": {"decode_tokens": [0, 32]}},
        "mape": {"overall": 5.0},
        "overhead_ms": 0.0,
        "decode_ms_per_token": 24.0,
        "max_batch_size": 32,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    def _write(value: Any) -> Path:
        path = tmp_path / "latency.json"
        path.write_text(json.dumps(value))
        return path

    return _write


def test_step_times_by_hand(write: Callable[[Any], Path]) -> None:
    model = StepTimeModel.load(write(document()), expect=EngineInfo(**ENGINE))
    # 4 sequences at 250 tokens; then with a chunk of 100 tokens after 200: 100·200 + 100·101/2.
    assert model.step_ms(0, 4, 1000, 0) == pytest.approx(8 + 1 + 0.5)
    assert model.step_ms(100, 4, 1000, 25050) == pytest.approx(8 + 5 + 1 + 0.5 + 0.2505)
    batches = np.array([[0, 4, 1000, 0], [100, 4, 1000, 25050]])
    np.testing.assert_allclose(model.step_ms(*batches.T), [9.5, 14.7505])
    assert (model.max_batch_size, model.decode_ms_per_token) == (32, 24.0)
    assert model.ranges == {"decode_tokens": (0.0, 32.0)}


def test_the_sharing_curve_is_optional(write: Callable[[Any], Path]) -> None:
    for value, expected in (([1.0, 1.4, 1.9], (1.0, 1.4, 1.9)), ([1], (1.0,)), (None, ())):
        model = StepTimeModel.load(write(document() | {"sharing_curve": value}))
        assert model.sharing_curve == expected
    assert StepTimeModel.load(write(document())).sharing_curve == ()


def test_one_coefficient_for_all_tokens(write: Callable[[Any], Path]) -> None:
    value = document() | {
        "kind": "tokens",
        "terms": [
            {"name": "const", "unit": "ms", "coefficient": 3.0},
            {"name": "tokens", "unit": "ms/token", "coefficient": 0.5},
        ],
    }
    model = StepTimeModel.load(write(value))
    assert model.step_ms(100, 4, 1000, 25050) == 3.0 + 0.5 * 104


@given(st.permutations(range(len(NAMES))), st.floats(0, 1e6), st.floats(0, 100))
def test_order_in_the_file_is_irrelevant_and_the_overhead_is_in_every_step(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], tokens: float, overhead: float
) -> None:
    value = document()
    value["terms"] = [value["terms"][index] for index in order]
    value["overhead_ms"] = overhead
    path = tmp_path_factory.mktemp("permuted") / "latency.json"
    path.write_text(json.dumps(value))
    model = StepTimeModel.load(path)
    row = [1.0, tokens, 3.0, 7.0, 2 * tokens]
    expected = overhead + np.dot(list(COEFFICIENTS.values()), row)
    assert model.step_ms(*row[1:]) == pytest.approx(expected)
    assert step_ms(model.compiled(), *row[1:]) == pytest.approx(expected)


@pytest.mark.parametrize("field", sorted(ENGINE))
def test_any_other_engine_field_is_refused(write: Callable[[Any], Path], field: str) -> None:
    changed: dict[type, Callable[[Any], Any]] = {
        str: lambda old: "fcfs" if field == "scheduling_policy" else old + "x",
        int: lambda old: old + 1,
        bool: lambda old: not old,
    }
    other = {**ENGINE, field: changed[type(ENGINE[field])](ENGINE[field])}
    path = write(document())
    StepTimeModel.load(path, expect=EngineInfo(**ENGINE))
    with pytest.raises(DataError, match=rf"differs in {field} \("):
        StepTimeModel.load(path, expect=EngineInfo(**other))


def test_every_differing_field_is_named(write: Callable[[Any], Path]) -> None:
    other = EngineInfo(**{**ENGINE, "num_kv_blocks": 900, "vllm_version": "0.33.0"})
    expected = r"vllm_version \(0.32.0 there, 0.33.0 here\), num_kv_blocks \(1000 there, 900 here\)"
    with pytest.raises(DataError, match=expected):
        StepTimeModel.load(write(document()), expect=other)


@pytest.mark.parametrize("index", range(len(NAMES)))
@pytest.mark.parametrize("new_name", ["decode_context", *TERMS])
def test_a_renamed_term_is_refused(write: Callable[[Any], Path], index: int, new_name: str) -> None:
    value = document()
    if value["terms"][index]["name"] == new_name:
        StepTimeModel.load(write(value))
        return
    value["terms"][index]["name"] = new_name
    with pytest.raises(DataError, match="has exactly the terms"):
        StepTimeModel.load(write(value))


@pytest.mark.parametrize("index", range(len(NAMES)))
def test_a_missing_repeated_or_wrong_term_is_refused(
    write: Callable[[Any], Path], index: int
) -> None:
    missing, repeated = document(), document()
    removed = missing["terms"].pop(index)
    repeated["terms"].append(removed)
    for value in (missing, repeated):
        with pytest.raises(DataError, match="has exactly the terms"):
            StepTimeModel.load(write(value))
    seconds = document()
    seconds["terms"][index]["unit"] = "s"
    with pytest.raises(DataError, match=f"term '{NAMES[index]}' is in 's', expected"):
        StepTimeModel.load(write(seconds))
    for coefficient in (-1e-9, float("nan"), float("inf")):
        broken = document()
        broken["terms"][index]["coefficient"] = coefficient
        with pytest.raises(DataError, match="finite and not negative"):
            StepTimeModel.load(write(broken))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, newer than the supported 1"),
        ({"schema": None}, "not a coefficient file"),
        ({"schema": 0}, "not a coefficient file"),
        ({"schema": True}, "not a coefficient file"),
        ({"kind": "eq10"}, "unknown kind 'eq10'"),
        ({"kind": "tokens"}, "has exactly the terms const, tokens"),
        ({"engine": None}, "calibrated without the engine's configuration"),
        ({"engine": {**ENGINE, "max_num_seqs": 0}}, "engine.max_num_seqs"),
        ({"engine": {**ENGINE, "flag": 1}}, "engine.flag"),
        ({"device": "gpu"}, "device is 'gpu' but engine.device is 'cpu'"),
        ({"overhead_ms": float("nan")}, "overhead_ms"),
        ({"overhead_ms": -1.0}, "overhead_ms"),
        ({"decode_ms_per_token": 0.0}, "decode_ms_per_token"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"fitted_on": {}}, "fitted_on.ranges"),
        ({"fitted_on": {"ranges": {"decode": [0, 9]}}}, "ranges has decode .* must be one of"),
        ({"fitted_on": {"ranges": {"decode_tokens": [9, 0]}}}, "decode_tokens from 9 to 0"),
        ({"sharing_curve": []}, "sharing_curve"),
        ({"sharing_curve": [1.2, 1.5]}, "sharing_curve: the first factor .* must be 1"),
        ({"sharing_curve": [1.0, 0.5]}, r"sharing_curve\.1"),
        ({"sharing_curve": [1.0, float("inf")]}, r"sharing_curve\.1"),
        ({"sharing_curve": [1.0, float("nan")]}, r"sharing_curve\.1"),
    ],
)
def test_a_malformed_file_is_refused(
    write: Callable[[Any], Path], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        StepTimeModel.load(write(document() | change))


@pytest.mark.parametrize("key", sorted(set(document()) - {"mape"}))
def test_every_field_that_is_used_is_required(write: Callable[[Any], Path], key: str) -> None:
    value = document()
    del value[key]
    with pytest.raises(DataError, match=r"latency\.json"):
        StepTimeModel.load(write(value))


def test_not_a_coefficient_file(write: Callable[[Any], Path], tmp_path: Path) -> None:
    for value in ([], {}, "text"):
        with pytest.raises(DataError, match="not a coefficient file"):
            StepTimeModel.load(write(value))
    with pytest.raises(DataError, match="does not exist"):
        StepTimeModel.load(tmp_path / "none.json")


def with_table(**table: Any) -> dict[str, Any]:
    terms = [
        {"name": name, "unit": TERMS[name].unit, "coefficient": 1.0}
        for name in KINDS["table"].terms
    ]
    points = {"tokens": [16, 64, 128], "ms": [0, 2, 2.5]} | table
    return document() | {"kind": "table", "terms": terms, "table": points}


def test_a_token_table(write: Callable[[Any], Path]) -> None:
    model = StepTimeModel.load(write(with_table()))
    plain = 1.0 + 1.0 + 100.0  # const, decode_tokens, decode_ctx_tokens
    decode = [model.step_ms(0, 1, 100, 0), model.step_ms(0, 1, 100, 0)]
    assert decode == [plain, plain]
    # 40 tokens are halfway to the second point, 256 twice as far behind the last as it is wide.
    assert model.step_ms(0, 40, 0, 0) == pytest.approx(1 + 40 + 1.0)
    assert model.step_ms(0, 256, 0, 0) == pytest.approx(1 + 256 + 2.5 + 1.0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (document() | {"table": {"tokens": [1, 2], "ms": [0, 1]}}, "'eq9' has no token table"),
        (with_table() | {"table": None}, "'table' has a token table, but the file has none"),
        (with_table(tokens=[16, 16, 128]), "tokens that increase"),
        (with_table(ms=[0, 2, 1]), "never fall"),
        (with_table(ms=[-1, 2, 3]), "not negative"),
        (with_table(ms=[0, 2]), "as many ms as tokens"),
        (with_table(tokens=[16], ms=[0]), r"table\.tokens"),
        (with_table(ms=[0, 1, float("nan")]), r"table\.ms"),
    ],
)
def test_a_bad_token_table_is_refused(
    write: Callable[[Any], Path], value: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        StepTimeModel.load(write(value))

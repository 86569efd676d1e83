"""What shows of a pool without starting it: what would run, what cannot, and what is not known."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chimera_train.pool.plan import plan_pool
from chimera_train.pool.schema import EngineSpec, Pool

COMMIT = "0" * 40
SHAPE = {"parameters_b": 7.6, "layers": 28, "kv_heads": 4, "head_dim": 128}


@pytest.fixture
def pool(stub_pool: Callable[..., Pool]) -> Callable[..., Pool]:
    """A pool of engines ``a``, ``b``, ... with these fields, run by the stand-in for vLLM."""
    environment = stub_pool().engines[0].launch.env

    def make(*engines: dict[str, Any], **fields: Any) -> Pool:
        made = []
        for name, engine in zip("abc", engines, strict=False):
            spec: dict[str, Any] = {"name": name, "price": {}, **engine}
            spec["price"] = {"input_usd_per_m": 1, "output_usd_per_m": 2}
            if "base_url" not in spec:
                launch = spec.get("launch", {})
                spec["launch"] = {**launch, "env": {**environment, **launch.get("env", {})}}
            made.append(spec)
        return Pool.model_validate({"engines": made, **fields})

    return make


def test_a_plan_says_what_would_run_and_starts_nothing(
    stub_pool: Callable[..., Pool], model_dir: Path, pids_path: Path
) -> None:
    far = EngineSpec(name="far", model="org/name", base_url="http://10.255.255.1:8000/v1/")
    plan = plan_pool(Pool(engines=[*stub_pool().engines, far]))
    launched, reached = plan.engines
    assert launched.source == str(model_dir)
    assert launched.port == "auto"
    assert "--port auto --max-num-seqs 4 --enforce-eager" in str(launched.command)
    assert reached.base_url == "http://10.255.255.1:8000/v1"
    assert reached.command is None
    assert plan.problems == []
    assert [warning.split(":")[0] for warning in plan.warnings] == [
        "Engine 'a' has no price", "Engine 'far' has no price",
    ]  # fmt: skip
    assert not pids_path.exists()


def test_every_problem_is_a_sentence_of_its_own(pool: Callable[..., Pool], model_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plan = plan_pool(
            pool(
                {"model": "package:pocket-none"},
                {"model": str(model_dir), "launch": {"port": port, "args": {"max_num_seq": 4}}},
                {"model": str(model_dir), "launch": {"args": {"max_num_seqs": "four"}}},
            )
        )
    assert [engine.name for engine in plan.engines] == ["b", "c"]
    model, busy, seqs = plan.problems[0], plan.problems[1], plan.problems[2:]
    assert "no embedded model 'package:pocket-none'" in model
    assert f"Port {port} of engine 'b'" in busy
    assert [problem.split(":")[0] for problem in seqs] == ["Engine 'c'"]
    assert "argument --max-num-seqs: invalid int value: 'four'" in seqs[0]


def test_a_flag_that_vllm_does_not_know(pool: Callable[..., Pool], model_dir: Path) -> None:
    plan = plan_pool(pool({"model": str(model_dir), "launch": {"args": {"max_sequences": 4}}}))
    assert plan.problems == [
        "Engine 'a': vLLM refuses its launch.args: unrecognized arguments: --max-sequences 4."
    ]


def test_without_vllm_flags_are_said_not_to_be_checked(
    pool: Callable[..., Pool], model_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('no vllm here')")
    environment = {"PYTHONPATH": str(tmp_path)}
    plan = plan_pool(pool({"model": str(model_dir), "launch": {"env": environment}}))
    assert plan.problems == []
    assert "flags of 'a' were not checked" in plan.warnings[0]
    assert "no vllm here" in plan.warnings[0]


@pytest.mark.parametrize(
    ("model", "is_pinned"),
    [(f"org/name@{COMMIT}", True), ("org/name", False), ("org/name@main", False)],
)
def test_a_model_that_is_not_pinned(pool: Callable[..., Pool], model: str, is_pinned: bool) -> None:
    plan = plan_pool(pool({"model": model}))
    assert any("is not pinned" in warning for warning in plan.warnings) != is_pinned


def test_memory_is_estimated_from_shape_and_device(pool: Callable[..., Pool]) -> None:
    device = {"name": "A6000", "memory_gib": 48, "count": 2}
    args = {"gpu_memory_utilization": 0.5, "max_model_len": 4096, "tensor_parallel_size": 2}
    engine = {
        "model": f"org/name@{COMMIT}", "shape": SHAPE, "device_group": "g", "launch": {"args": args}
    }  # fmt: skip
    plan = plan_pool(pool(engine, devices={"g": device}))
    assert plan.problems == []
    assert plan.warnings == []
    (memory,) = plan.memory
    assert (memory.name, memory.devices, memory.origin) == ("a", 2, "estimated")
    assert memory.reserved_gib == pytest.approx(24)
    assert memory.weights_gib == pytest.approx(7.6e9 / 2**30)  # half of two bytes each
    assert memory.kv_gib == pytest.approx(24 - 7.6e9 / 2**30 - 2)
    assert memory.kv_tokens == pytest.approx(memory.kv_gib * 2 * 2**30 / (2 * 28 * 4 * 128 * 2), 1)


def test_what_does_not_fit_is_said(pool: Callable[..., Pool]) -> None:
    engine = {"model": f"org/name@{COMMIT}", "shape": SHAPE, "device_group": "g", "launch": {}}
    small = {"g": {"name": "small", "memory_gib": 16}}
    (problem,) = plan_pool(pool(engine, devices=small)).problems
    assert "Engine 'a': 14.2 GiB of weights leave 0.0 of 14.7 GiB for KV cache" in problem
    large = {"g": {"name": "large", "memory_gib": 80}}
    (problem,) = plan_pool(pool(engine, engine, devices=large)).problems
    assert "Device group 'g': a, b together reserve 147.2 of 80.0 GiB" in problem


def test_what_cannot_be_estimated_is_said(pool: Callable[..., Pool], model_dir: Path) -> None:
    devices = {"g": {"name": "A6000", "memory_gib": 48}}
    engines = [{"model": str(model_dir), "device_group": "g"}, {"model": str(model_dir)}]
    warnings = plan_pool(pool(*engines, devices=devices)).warnings
    assert "Engine 'a' has no shape" in warnings[0]
    assert "Engine 'b' is on no device" in warnings[1]

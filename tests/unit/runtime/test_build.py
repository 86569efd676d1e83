"""Which engines get priorities, and which are not the ones that were calibrated."""

from types import SimpleNamespace

import pytest

from chimera_train.pool.schema import Declared, EngineInfo, EngineSpec, Launch
from chimera_train.runtime.build import changes_since_calibration, make_endpoint
from chimera_train.runtime.engines import Endpoint

URL = "http://127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("args", "calibrated", "takes"),
    [
        ({"scheduling_policy": "priority"}, "fcfs", True),
        ({"scheduling-policy": "priority"}, "fcfs", True),
        ({"scheduling_policy": "fcfs"}, "priority", False),
        ({}, "priority", False),
        (None, "priority", True),
        (None, "fcfs", False),
    ],
)
def test_priorities(args: dict | None, calibrated: str, takes: bool) -> None:
    info = SimpleNamespace(scheduling_policy=calibrated)
    bundle = SimpleNamespace(step_time={"one": SimpleNamespace(engine=info)})
    reached = {"base_url": URL} if args is None else {"launch": Launch(args=args)}
    spec = EngineSpec(name="one", model="org/m", **reached)
    assert make_endpoint(bundle, spec, URL, "m", "key") == Endpoint("one", URL, "m", takes, "key")


DECLARED = {
    "device": "gpu",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enable_chunked_prefill": True,
    "scheduling_policy": "fcfs",
    "async_scheduling": True,
    "tensor_parallel_size": 1,
}
MEASURED = EngineInfo(
    **DECLARED,
    model="org/m",
    vllm_version="0.32.0",
    max_model_len=64,
    block_size=16,
    num_kv_blocks=99,
    enable_prefix_caching=True,
)


@pytest.mark.parametrize(
    ("reached", "version", "differing"),
    [
        ({"launch": Launch()}, "0.32.0", None),
        ({"launch": Launch(args={"max-num-seqs": 8, "seed": 3})}, "0.32.0", None),
        ({"launch": Launch(args={"max-num-seqs": 9})}, "0.32.0", "max_num_seqs (8 there, 9 here)"),
        (
            {"launch": Launch(args={"enable_prefix_caching": False})},
            "0.33.0",
            "enable_prefix_caching (True there, False here), vllm_version (0.32.0 there, 0.33.0",
        ),
        ({"base_url": URL}, None, None),
        ({"base_url": URL, "declared": Declared(**DECLARED)}, "0.32.0", None),
        (
            {"base_url": URL, "declared": Declared(**{**DECLARED, "device": "other"})},
            "0.32.0",
            "device (gpu there, other here)",
        ),
    ],
)
def test_engines_that_are_not_as_they_were_measured(
    reached: dict, version: str | None, differing: str | None
) -> None:
    bundle = SimpleNamespace(step_time={"one": SimpleNamespace(engine=MEASURED)})
    spec = EngineSpec(name="one", model="org/m", **reached)
    found = list(changes_since_calibration(bundle, [(spec, version)]))
    assert len(found) == (differing is not None)
    assert all(f"differs in {differing}" in said for said in found)

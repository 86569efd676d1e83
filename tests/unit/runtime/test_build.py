"""Which engines get priorities: those whose flags say so, or were calibrated so."""

from types import SimpleNamespace

import pytest

from chimera_train.pool.schema import EngineSpec, Launch
from chimera_train.runtime.build import make_endpoint
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
    assert make_endpoint(bundle, spec, URL, "m") == Endpoint("one", URL, "m", takes)

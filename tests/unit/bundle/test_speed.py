from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from chimera_train.bundle.load import load_bundle
from chimera_train.bundle.speed import check_router
from chimera_train.scheduling.policy import Chimera, PolicySettings, Sfs


@pytest.mark.parametrize(
    ("taken_s", "policy", "warned"),
    [
        (0.2, Chimera(), None),
        (0.3, Chimera(), "300 ms for a text of 256 words, more than a program should wait"),
        (0.2, Sfs(ttft_target_ms=100), "200 ms for a text of 256 words, more than the policy's"),
        (0.3, Sfs(ttft_target_ms=5000), "more than a program should wait for it, 250 ms"),
    ],
)
def test_a_router_that_misses_its_deadline_is_warned_of(
    exported: Path, taken_s: float, policy: PolicySettings, warned: str | None
) -> None:
    clock = count()
    found = check_router(
        replace(load_bundle(exported), policy=policy), lambda: next(clock) * taken_s
    )
    assert (found.name, found.status) == ("router", "warn" if warned else "ok")
    assert (warned or "200 ms for a text of 256 words") in found.detail
    assert bool(found.fix) == bool(warned)

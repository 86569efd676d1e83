"""Whether a bundle's router is fast enough on this machine."""

import statistics
from collections.abc import Callable

from chimera_train.bundle.load import Bundle
from chimera_train.pool.doctor import Check

__all__ = ["check_router"]

_WORDS = 256
_CALLS = 5
# Where the policy has no target for the first token: what is added to every program's wait.
_PATIENCE_MS = 250.0


def check_router(bundle: Bundle, now_s: Callable[[], float]) -> Check:
    """Time the router on a text of 256 words; a warning if it misses the deadline of a decision.

    The deadline is the policy's target for the first token, which nothing can meet that is routed
    later, and a quarter of a second where it has none or a longer one.
    """
    times_ms = []
    for call in range(_CALLS):
        text = " ".join([f"question{call}"] * _WORDS)
        before_s = now_s()
        bundle.router.predict([text])
        times_ms.append(1000 * (now_s() - before_s))
    taken_ms = statistics.median(times_ms)  # the first loads what the others find
    target_ms = bundle.policy.compiled().ttft_target_ms
    deadline_ms = min(_PATIENCE_MS, target_ms)
    detail = f"{taken_ms:.3g} ms for a text of {_WORDS} words"
    if taken_ms <= deadline_ms:
        return Check("router", "ok", detail)
    whose = "the policy's target" if target_ms <= _PATIENCE_MS else "a program should wait for it"
    fix = "fit a smaller one ('fit router --kind auto'), or an encoder with 'precision: int8'"
    return Check("router", "warn", f"{detail}, more than {whose}, {deadline_ms:g} ms", fix)

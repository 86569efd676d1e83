"""Which settings of which policies ``simulate tune`` tries.

A kind of policy can be searched if the table has an entry for it, in the orders that can be served.
``window`` stays the engine's own limit, which is what its load constants were calibrated for.
``sfs`` does not shed: where it refuses everybody, an objective of latency would have no value.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from optuna.trial import Trial

from chimera_train.errors import ConfigError
from chimera_train.scheduling.policy import (
    SERVED_ORDERS,
    Chimera,
    LatencyAgnostic,
    PolicySettings,
    RoundRobin,
    Sfs,
    ShortestQueue,
    StaticPrior,
)
from chimera_train.simulate.objective import ObjectiveSettings

__all__ = ["SearchSpace", "search_space"]


def _real(low: float, high: float, *, log: bool = False) -> Callable[[Trial, str], float]:
    # Three digits: nobody would write more into a policy file, nor would they make a difference.
    return lambda trial, name: float(f"{trial.suggest_float(name, low, high, log=log):.3g}")


def _one_of(*values: str) -> Callable[[Trial, str], str]:
    return lambda trial, name: trial.suggest_categorical(name, values)


class _Kind(NamedTuple):
    """A kind of policy.

    Attributes:
        default: how it is without a search.
        settings: what is searched beside the order of the queues.
        served: whether the gateway can serve it, or it can be simulated only.
    """

    default: PolicySettings
    settings: Mapping[str, Callable[[Trial, str], Any]]
    served: bool = True


_AGING = (1, 256)
_COST_WEIGHT = _real(1e-5, 0.1, log=True)
_TTFT_TARGET_MS = _real(10.0, 60_000.0, log=True)
_KINDS: Mapping[str, _Kind] = {
    kind.default.kind: kind
    for kind in (
        _Kind(RoundRobin(), {}),
        _Kind(ShortestQueue(), {}),
        _Kind(
            Chimera(),
            {
                "tau": _real(0.01, 64.0, log=True),  # with 64 the load hardly counts
                "delta_s": _real(0.001, 0.3, log=True),
                "load": _one_of("inflight", "inflight+self"),  # with sfs it cannot be served
                "upgrade": _one_of("margin", "argmax"),
            },
        ),
        _Kind(LatencyAgnostic(), {"cost_weight": _COST_WEIGHT}, served=False),
        _Kind(
            StaticPrior(ttft_target_ms=1000.0),
            {"cost_weight": _COST_WEIGHT, "ttft_target_ms": _TTFT_TARGET_MS},
            served=False,
        ),
        _Kind(
            Sfs(ttft_target_ms=1000.0),
            {
                "cost_weight": _COST_WEIGHT,
                "ttft_target_ms": _TTFT_TARGET_MS,
                "latency_weight_per_s": _real(0.0, 10.0),
                "overload": _one_of("least_late", "shortest_queue", "best_effort"),
            },
            served=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The policies among which one is looked for.

    Attributes:
        orders: of each kind that is searched, those for which there are the predictors.
    """

    orders: Mapping[str, tuple[str, ...]]

    def suggest(self, trial: Trial) -> PolicySettings:
        """The policy that ``trial`` is about."""
        kind = trial.suggest_categorical("kind", list(self.orders))
        values: dict[str, Any] = {
            "order": trial.suggest_categorical(f"{kind}.order", self.orders[kind])
        }
        if values["order"] != "fcfs":  # without effect there
            values["aging"] = trial.suggest_int(f"{kind}.aging", *_AGING, log=True)
        default, settings, _ = _KINDS[kind]
        for name, suggest in settings.items():
            values[name] = suggest(trial, f"{kind}.{name}")
        return default.model_copy(update=values)

    def parameters(self, policy: PolicySettings) -> dict[str, Any]:
        """What ``suggest`` takes from a trial to return ``policy``."""
        names = ["order", "aging", *_KINDS[policy.kind].settings]
        values = {f"{policy.kind}.{name}": getattr(policy, name) for name in names}
        return {"kind": policy.kind, **values}

    def holds(self, policy: PolicySettings) -> bool:
        """Whether ``policy`` is one of those that are searched."""
        return policy.order in self.orders.get(policy.kind, ())


def search_space(objective: ObjectiveSettings) -> tuple[SearchSpace, list[PolicySettings]]:
    """What to search, and the policies that every answer is compared with.

    These are round robin and shortest queue, first come first served and by least ŷ if there are
    length predictors, and the others as they are by default.

    Raises:
        ConfigError: a kind of policy is unknown, or needs a predictor that is not given.
    """

    def possible(policy: PolicySettings) -> bool:
        return (objective.router is not None or not policy.needs_confidence) and (
            objective.length is not None or not policy.needs_lengths
        )

    orders = {
        name: tuple(
            order
            for order in SERVED_ORDERS
            if possible(kind.default.model_copy(update={"order": order}))
        )
        for name, kind in _KINDS.items()
    }
    for kind in objective.kinds or ():
        if kind not in orders:
            raise ConfigError(
                f"kinds of the objective: '{kind}' cannot be tuned, only {', '.join(orders)}."
            )
        if not orders[kind]:
            raise ConfigError(
                f"kinds of the objective: '{kind}' needs 'router' and 'length', directories of"
                " 'fit router' and 'fit length'."
            )
    kinds = objective.kinds or [name for name, kind in _KINDS.items() if kind.served]
    wanted = {kind: orders[kind] for kind in orders if kind in kinds and orders[kind]}
    baselines: list[PolicySettings] = [RoundRobin(), ShortestQueue(), ShortestQueue(order="stjf")]
    defaults = [_KINDS[kind].default for kind in wanted]
    return SearchSpace(wanted), [
        policy for policy in dict.fromkeys([*baselines, *defaults]) if possible(policy)
    ]

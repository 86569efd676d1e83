"""Which settings of which policies ``simulate tune`` tries.

A kind of policy is searched if the table has an entry for it. ``window`` stays the engine's own
limit, which is what its load constants were calibrated for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.trial import Trial

from chimera_train.errors import ConfigError
from chimera_train.scheduling.policy import Chimera, PolicySettings, RoundRobin, ShortestQueue
from chimera_train.simulate.objective import ObjectiveSettings

__all__ = ["SearchSpace", "search_space"]


def _real(low: float, high: float, *, log: bool = False) -> Callable[[Trial, str], float]:
    # Three digits: nobody would write more into a policy file, nor would they make a difference.
    return lambda trial, name: float(f"{trial.suggest_float(name, low, high, log=log):.3g}")


def _one_of(*values: str) -> Callable[[Trial, str], str]:
    return lambda trial, name: trial.suggest_categorical(name, values)


#: The settings that each kind of policy has beside the order of its queues.
_SETTINGS: Mapping[Callable[..., PolicySettings], Mapping[str, Callable[[Trial, str], Any]]] = {
    RoundRobin: {},
    ShortestQueue: {},
    Chimera: {
        "tau": _real(0.01, 64.0, log=True),  # with 64 the load hardly counts, as with infinity
        "delta_s": _real(0.0, 0.5),
        "load": _one_of("inflight", "inflight+self"),
        "upgrade": _one_of("margin", "argmax"),
    },
}
_ORDERS = ("fcfs", "stjf")
_AGING = (1, 256)

_POLICIES: Mapping[str, Callable[..., PolicySettings]] = {
    policy().kind: policy for policy in _SETTINGS
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
        policy = _POLICIES[kind]
        for name, suggest in _SETTINGS[policy].items():
            values[name] = suggest(trial, f"{kind}.{name}")
        return policy(**values)

    def parameters(self, policy: PolicySettings) -> dict[str, Any]:
        """What ``suggest`` takes from a trial to return ``policy``."""
        names = ["order", "aging", *_SETTINGS[type(policy)]]
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
        kind: tuple(order for order in _ORDERS if possible(policy(order=order)))
        for kind, policy in _POLICIES.items()
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
    wanted = {
        kind: found
        for kind, found in orders.items()
        if found and (objective.kinds is None or kind in objective.kinds)
    }
    baselines: list[PolicySettings] = [RoundRobin(), ShortestQueue(), ShortestQueue(order="stjf")]
    defaults = [_POLICIES[kind]() for kind in wanted]
    return SearchSpace(wanted), [
        policy for policy in dict.fromkeys([*baselines, *defaults]) if possible(policy)
    ]

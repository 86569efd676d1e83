"""The settings of every policy, as ``policy.json`` and the entries of a sweep hold them."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, PlainSerializer, RootModel, model_validator

from chimera_train.config import Settings, load_yaml

__all__ = [
    "ALONE",
    "BEST_EFFORT",
    "CHIMERA",
    "LEAST_LATE",
    "LIVE",
    "LIVE_TO_THE_END",
    "MLFQ",
    "NO_ESTIMATE",
    "POLICY_SCHEMA",
    "ROUND_ROBIN",
    "SERVED_ORDERS",
    "SHED",
    "SHORTEST_QUEUE",
    "UTILITY",
    "Chimera",
    "CompiledPolicy",
    "LatencyAgnostic",
    "Order",
    "PolicySettings",
    "RoundRobin",
    "Sfs",
    "ShortestQueue",
    "StaticPrior",
    "dump_policy",
    "load_policy",
]

POLICY_SCHEMA = 1

# Values of ``CompiledPolicy.kind``.
ROUND_ROBIN, SHORTEST_QUEUE, CHIMERA, UTILITY = range(4)
# Values of ``CompiledPolicy.estimate``: nothing; TTFT on an idle engine; TTFT on the engine as it
# is; and the completion too.
NO_ESTIMATE, ALONE, LIVE, LIVE_TO_THE_END = range(4)
# Values of ``CompiledPolicy.overload``, in the order in which ``Overload`` names them.
LEAST_LATE, JOIN_SHORTEST_QUEUE, BEST_EFFORT, SHED = range(4)

Overload = Literal["least_late", "shortest_queue", "best_effort", "shed"]
Order = Literal["fcfs", "sjf", "stjf", "stjf_oracle", "mlfq", "ltr"]

MLFQ: Order = "mlfq"
SERVED_ORDERS: tuple[Order, ...] = ("fcfs", "stjf")
"""Those that a bundle has everything for; the others can be simulated only."""

# A number that may be infinite, which JSON does not have.
_Extended = Annotated[float, PlainSerializer(lambda value: "inf" if math.isinf(value) else value)]


class CompiledPolicy(NamedTuple):
    """A policy's settings for compiled decisions.

    Attributes:
        kind: the rule: one of the numbers above, as ``estimate`` and ``overload`` are.
        aging: as in the settings.
        tau: as in the settings of ``Chimera``, like the rest; of no meaning for other kinds.
        delta_s: Δs.
        by_margin: whether ``upgrade`` is ``margin``.
        add_self: whether ``load`` is ``inflight+self``.
        estimate: which times the choice needs.
        ttft_target_ms: as in the settings of ``Sfs``, like the rest.
        cost_weight: λ.
        latency_weight_per_ms: δ.
        overload: what is done if no engine begins in time.
        reserve: as in the settings of ``Sfs``.
    """

    kind: int
    aging: int
    tau: float = 0.0
    delta_s: float = 0.0
    by_margin: bool = False
    add_self: bool = False
    estimate: int = NO_ESTIMATE
    ttft_target_ms: float = math.inf
    cost_weight: float = 0.0
    latency_weight_per_ms: float = 0.0
    overload: int = LEAST_LATE
    reserve: float = 0.0


class _Queueing(Settings):
    """How the requests of one engine wait, whichever policy chose the engine.

    Attributes:
        order: ``fcfs``; ``stjf``, shortest total job first: least ŷ; ``stjf_oracle``, by what is
            really to come; ``sjf``, shortest job first: fewest predicted tokens of this stage;
            ``ltr``, by a learned rank of that; or ``mlfq`` (``simulate.mlfq``).
        aging: a request that this many later ones have overtaken is promoted: it goes before
            every request that is not, first come first served among the promoted. The default is
            from docs/adr/0006.
        window: at most this many requests are outstanding at an engine, the rest wait in our
            queue; null is the engine's ``max_batch_size``, and under ``mlfq`` no limit.
    """

    order: Order = "fcfs"
    aging: int = Field(default=64, ge=0)
    window: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _waits_in_one_place(self) -> "_Queueing":
        if self.order == MLFQ and self.window is not None:
            raise ValueError("order 'mlfq' queues inside the engine: leave out 'window'")
        return self

    @property
    def needs_confidence(self) -> bool:
        """Whether a new program's request must carry q."""
        return False

    @property
    def needs_lengths(self) -> bool:
        """Whether ŷ has any influence."""
        return self.order == "stjf"

    @property
    def needs_stage_lengths(self) -> bool:
        """Whether the predicted tokens of single stages have any influence."""
        return self.order == "sjf"

    @property
    def needs_ranks(self) -> bool:
        """Whether learned ranks have any influence."""
        return self.order == "ltr"

    def compiled(self) -> CompiledPolicy:
        """The settings for compiled decisions."""
        return CompiledPolicy(aging=self.aging, **self._rule())

    def _rule(self) -> dict[str, Any]:
        """The fields of ``CompiledPolicy`` that say how an engine is chosen."""
        raise NotImplementedError


class _Predicting(_Queueing):
    """A policy that goes by q and ŷ."""

    @property
    def needs_confidence(self) -> bool:
        return True

    @property
    def needs_lengths(self) -> bool:
        return True


class RoundRobin(_Queueing):
    """New programs go to the engines in turn."""

    kind: Literal["round_robin"] = "round_robin"

    def _rule(self) -> dict[str, Any]:
        return {"kind": ROUND_ROBIN}


class ShortestQueue(_Queueing):
    """A new program goes to the engine with the fewest requests, waiting and running."""

    kind: Literal["shortest_queue"] = "shortest_queue"

    def _rule(self) -> dict[str, Any]:
        return {"kind": SHORTEST_QUEUE}


class Chimera(_Predicting):
    """Algorithm 1: the most confident engine within a latency slack (§3.6).

    Attributes:
        tau: τ, the slack: engines of load up to (1 + τ) times the least may be chosen; ``inf``
            leaves the load out of account.
        delta_s: Δs, how much more confident a slower engine must be.
        load: ``inflight``, as published, with which all idle engines are equally fast, so that the
            most confident of them is chosen; ``inflight+self``, which adds the program's own
            predicted work to every engine's load; or ``sfs``, the time to
            completion that the engine's rules and state give (simulated only).
        upgrade: ``margin`` walks the engines in order of load and raises the bar with every move;
            ``argmax`` takes the most confident of those that beat the fastest by Δs.
    """

    kind: Literal["chimera"] = "chimera"
    order: Order = "stjf"
    tau: _Extended = Field(default=0.5, ge=0)
    delta_s: _Extended = Field(default=0.05, ge=0)
    load: Literal["inflight", "inflight+self", "sfs"] = "inflight"
    upgrade: Literal["margin", "argmax"] = "margin"

    def _rule(self) -> dict[str, Any]:
        return {
            "kind": CHIMERA,
            "tau": self.tau,
            "delta_s": self.delta_s,
            "by_margin": self.upgrade == "margin",
            "add_self": self.load == "inflight+self",
            "estimate": LIVE_TO_THE_END if self.load == "sfs" else NO_ESTIMATE,
        }


class _Utility(_Predicting):
    """The engine of the greatest utility U = q − λ·cost.

    Attributes:
        cost_weight: λ, utility per micro-dollar that a request costs by the pool's token prices and
            the predicted output.
    """

    cost_weight: float = Field(default=5e-4, ge=0)

    def _rule(self) -> dict[str, Any]:
        return {"kind": UTILITY, "cost_weight": self.cost_weight}


class _InTime(_Utility):
    """The same among engines that begin in time.

    Attributes:
        ttft_target_ms: τ, the time to first token that is wanted; ``inf`` for none.
    """

    ttft_target_ms: _Extended = Field(gt=0)

    def _rule(self) -> dict[str, Any]:
        return {**super()._rule(), "ttft_target_ms": self.ttft_target_ms}


class LatencyAgnostic(_Utility):
    """The greatest utility, whatever the load (a baseline of SFS)."""

    kind: Literal["latency_agnostic"] = "latency_agnostic"


class StaticPrior(_InTime):
    """The greatest utility among engines that, were they idle, would begin in time (a baseline)."""

    kind: Literal["static_prior"] = "static_prior"

    def _rule(self) -> dict[str, Any]:
        return {**super()._rule(), "estimate": ALONE}


class Sfs(_InTime):
    """The greatest utility among engines that, as they are loaded, begin in time (SFS §5).

    Attributes:
        latency_weight_per_s: δ, utility that a second of TTFT costs; with an infinite target it is
            the relaxation. 0, as published with a target, fills the most useful engine up to the
            target, which later arrivals then exceed.
        overload: what is done if no engine begins in time: ``least_late``, as published, takes the
            one that begins first; ``shortest_queue`` that of the fewest requests; ``best_effort``
            does too, and serves the program behind those that can be in time; ``shed`` refuses the
            program.
        reserve: share of an engine's window that ``best_effort`` keeps for those.
    """

    kind: Literal["sfs"] = "sfs"
    latency_weight_per_s: float = Field(default=3.0, ge=0)
    overload: Overload = "best_effort"
    reserve: float = Field(default=0.125, ge=0, lt=1)

    def _rule(self) -> dict[str, Any]:
        return {
            **super()._rule(),
            "estimate": LIVE,
            "latency_weight_per_ms": self.latency_weight_per_s / 1000,
            "overload": get_args(Overload).index(self.overload),
            "reserve": self.reserve,
        }


PolicySettings = Annotated[
    RoundRobin | ShortestQueue | Chimera | LatencyAgnostic | StaticPrior | Sfs,
    Field(discriminator="kind"),
]


class _PolicyFile(RootModel[PolicySettings]):
    @model_validator(mode="before")
    @classmethod
    def _of_this_schema(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        schema = values.get("schema", POLICY_SCHEMA)
        if schema != POLICY_SCHEMA:
            raise ValueError(f"policy schema {schema}, but this version reads {POLICY_SCHEMA}")
        return {key: value for key, value in values.items() if key != "schema"}


def dump_policy(policy: PolicySettings) -> dict[str, Any]:
    """The content of ``policy.json``: every setting, and the schema's number."""
    return {"schema": POLICY_SCHEMA, **policy.model_dump()}


def load_policy(path: Path) -> PolicySettings:
    """Read a policy file: YAML as people write it, or JSON as a bundle holds it, which is YAML too.

    Raises:
        ConfigError: the file is missing, of another schema, or a setting is unknown or out of its
            range; file, line and key are named.
    """
    return load_yaml(path, _PolicyFile).root

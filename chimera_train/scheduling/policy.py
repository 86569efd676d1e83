"""The settings of every policy, as ``policy.json`` and the entries of a sweep hold them."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_serializer

from chimera_train.config import Settings, parse_settings
from chimera_train.errors import DataError
from chimera_train.files import read_json

__all__ = [
    "POLICY_SCHEMA",
    "Chimera",
    "PolicySettings",
    "RoundRobin",
    "ShortestQueue",
    "dump_policy",
    "load_policy",
]

POLICY_SCHEMA = 1


class _Queueing(Settings):
    """How the requests of one engine wait, whichever policy chose the engine.

    Attributes:
        order: ``fcfs``, or ``stjf`` (shortest total job first: least ŷ).
        aging: a request that this many later ones have overtaken is promoted: it goes before
            every request that is not, first come first served among the promoted.
        window: at most this many requests are outstanding at an engine, the rest wait in our
            queue; null is the engine's ``max_batch_size``.
    """

    order: Literal["fcfs", "stjf"] = "fcfs"
    aging: int = Field(default=16, ge=0)
    window: int | None = Field(default=None, gt=0)

    @property
    def needs_confidence(self) -> bool:
        """Whether a new program's request must carry q."""
        return False

    @property
    def needs_lengths(self) -> bool:
        """Whether ŷ has any influence."""
        return self.order == "stjf"


class RoundRobin(_Queueing):
    """New programs go to the engines in turn."""

    kind: Literal["round_robin"] = "round_robin"


class ShortestQueue(_Queueing):
    """A new program goes to the engine with the fewest requests, waiting and running."""

    kind: Literal["shortest_queue"] = "shortest_queue"


class Chimera(_Queueing):
    """Algorithm 1: the most confident engine within a latency slack (§3.6).

    Attributes:
        tau: τ, the slack: engines of load up to (1 + τ) times the least may be chosen; ``inf``
            leaves the load out of account.
        delta_s: Δs, how much more confident a slower engine must be.
        load: ``inflight``, as published, or ``inflight+self``, which adds the program's own
            predicted work to every engine's load, so that an idle pool is not a tie.
        upgrade: ``margin`` walks the engines in order of load and raises the bar with every move;
            ``argmax`` takes the most confident of those that beat the fastest by Δs.
    """

    kind: Literal["chimera"] = "chimera"
    order: Literal["fcfs", "stjf"] = "stjf"
    tau: float = Field(default=0.5, ge=0)
    delta_s: float = Field(default=0.05, ge=0)
    load: Literal["inflight", "inflight+self"] = "inflight+self"
    upgrade: Literal["margin", "argmax"] = "margin"

    @property
    def needs_confidence(self) -> bool:
        return True

    @property
    def needs_lengths(self) -> bool:
        return True

    @field_serializer("tau", "delta_s")
    def _infinity_as_text(self, value: float) -> float | str:
        return "inf" if math.isinf(value) else value  # JSON has no infinity


PolicySettings = Annotated[RoundRobin | ShortestQueue | Chimera, Field(discriminator="kind")]


class _Holder(Settings):
    policy: PolicySettings


def dump_policy(policy: PolicySettings) -> dict[str, Any]:
    """The content of ``policy.json``: every setting, and the schema's number."""
    return {"schema": POLICY_SCHEMA, **policy.model_dump()}


def load_policy(path: Path) -> PolicySettings:
    """Read a ``policy.json``.

    Raises:
        DataError: the file is missing, is not a JSON object, or is of another schema.
        ConfigError: a setting is unknown or out of its range; file and key are named.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a policy file: expected a JSON object.")
    schema = values.pop("schema", None)
    if schema != POLICY_SCHEMA:
        raise DataError(f"{path} has policy schema {schema}; this version reads {POLICY_SCHEMA}.")
    return parse_settings({"policy": values}, _Holder, str(path)).policy
